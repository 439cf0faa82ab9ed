"""`status`: a table of runs, one run in full, and the line that `up` rewrites while it follows."""

import math
from decimal import Decimal
from typing import Any

from gpurun.marks import passed
from gpurun.show.orphans import orphans_lines
from gpurun.show.risk import LIVE, bills, called, if_dies, if_off, money_guards, only_guard
from gpurun.show.text import NONE, Look, cut, duration, local_time, money, table

HEAD = (
    "RUN", "RECIPE", "PROVIDER", "GPU", "PHASE", "STATE", "ELAPSED", "$/H",
    "SPENT", "PROJECTED", "ENDS", "BY", "PROGRESS",
)  # fmt: skip
RIGHT = (6, 7, 8, 9)
SPARE = (2, 3, 11, 6, 7, 1, 12)  # first to go when the page is narrow
COLOURS = {"still_billing": "red", "failed": "yellow", "deadline": "yellow", "active": "green"}
SPARE_TIME = 1.1  # a forecast is never exact


def status_text(document: dict[str, Any], look: Look) -> str:
    runs, orphans = document["runs"], document["orphans"]
    lines: list[str] = []
    if not runs and not orphans:
        lines.append("no runs; `gpurun up RECIPE` starts one, `gpurun recipes` lists recipes")
    if runs:
        head, *rows = table(HEAD, [_row(run) for run in runs], look, right=RIGHT, spare=SPARE)
        lines.append(look.paint(head, "bold"))
        for run, row in zip(runs, rows, strict=True):
            lines.append(look.paint(row, COLOURS.get(run["state"], "")))
    lines += [warning for run in runs for warning in _warnings(run, look)]
    if orphans:
        lines += ["", f"orphans, billing under no timer of gpurun (seen {_seen(document)}):"]
        lines += [f"  {line}" for line in orphans_lines(orphans, look)]
    lines += [look.paint(_cap(cap), "yellow") for cap in document["caps"]]
    if trouble := document["notify"]["trouble"]:
        said = f"notifications fail: {trouble} (`gpurun notify test` tries each)"
        lines.append(look.paint(said, "red"))
    return "\n".join(lines)


def run_text(run: dict[str, Any], look: Look) -> str:
    """One run, every figure."""
    timer, train, forecast = run["timer"], run["train"], run["forecast"]
    facts = [
        ("run", f"{run['id']}  ({run['recipe'] or '?'} on {run['provider']})"),
        ("state", _state(run)),
        ("phase", run["phase"]),
        ("elapsed", duration(run["elapsed_s"])),
        ("box", f"{run['instance_id'] or NONE}  {_gpu(run)}".rstrip()),
        ("rate", f"${run['usd_per_hour']}/h" if run["usd_per_hour"] else None),
        ("spent", money(run["spent_usd"])),
        ("projected", f"{money(run['projected_usd'])} of {money(run['budget_usd'])}"),
    ]
    if timer:
        facts += [("timer", _timer(timer))]
        facts += [("ends", _ends(run))]
    facts += [("guard", _guard(guard, run)) for guard in run["guards"]]
    if run["if_lost"] and run["if_lost"]["ended_by"]:
        facts += [("if lost", if_dies(run))]
    if train:
        facts += [("train", train_words(train))]
        facts += [("checkpoint", _moment(train["last_checkpoint_at"]))]
    if forecast:
        late = "" if forecast["before_timer"] else f"; its timer comes {late_words(run)}"
        facts += [
            ("forecast", f"done at {local_time(forecast['finish_at'])} for another "
             f"{money(forecast['usd_to_finish'])}{late}")
        ]  # fmt: skip
    facts += [("collected", run["collected_at"] and local_time(run["collected_at"]))]
    facts += [("results", if_off(run))]
    reason, error = run["reason"] or "", run["error"] or ""
    facts += [("reason", "" if reason in error else reason), ("error", error)]
    if (verdict := run["verdict"]) and verdict["says"] not in error:
        facts += [("verdict", f"{verdict['says']} {verdict['cure']}")]
        facts += [("evidence", verdict["evidence"])]
    wide = max(len(name) for name, _ in facts)
    lines = [f"{name:<{wide}}  {value}" for name, value in facts if value]
    return "\n".join([*lines, *_warnings(run, look)])


def said_of_itself(run: dict[str, Any], last_output: str) -> str:
    """Its figures while it trains, else the last line that its step has printed."""
    if run["kept_until"]:
        return kept_words(run)
    if not run["train"] or run["phase"] != "train":
        return last_output
    train, words = run["train"], train_words(run["train"])
    # After the last step it evaluates and saves: then what it prints is the news.
    over = train["eta_s"] == 0 or (train["step"] and train["step"] == train["total_steps"])
    return f"{words}  {last_output}".strip() if not words or over else words


def kept_words(run: dict[str, Any]) -> str:
    return (
        f"failed, and kept for a look until {local_time(run['kept_until'])}: "
        f"`gpurun ssh {run['id']}`; `gpurun kill {run['id']}` ends it now"
    )


def progress_line(run: dict[str, Any], said: str, look: Look) -> str:
    """phase, elapsed, money, then what the phase says of itself."""
    head = f"{run['phase'] or '?':<8} {duration(run['elapsed_s']):>7}  {money(run['spent_usd'])}"
    return cut(f"{head}  {said}".rstrip(), look)


def train_words(train: dict[str, Any]) -> str:
    step, total = train["step"], train["total_steps"]
    words = [f"step {step}/{total}" if total else f"step {step}"] if step is not None else []
    if isinstance(train["loss"], int | float):
        words.append(f"loss {train['loss']:.4g}")
    if isinstance(train["it_per_s"], int | float) and train["it_per_s"]:
        words.append(f"{train['it_per_s']:.3g} it/s")
    words += _gpu_words(train)
    if isinstance(train["eta_s"], int | float):
        words.append(f"eta {duration(train['eta_s'])}")
    return "  ".join(words)


def _gpu_words(train: dict[str, Any]) -> list[str]:
    """All of its GPUs together, as far as they tell."""
    shown = (("gpu_util", "{:.0f}%"), ("power_w", "{:.0f} W"), ("gpu_mem_gib", "{:.1f} GiB"))
    figures = [text.format(train[key]) for key, text in shown if _is_number(train[key])]
    return [f"gpu {' '.join(figures)}"] if figures else []


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    timer = run["timer"] or {}
    live = run["state"] in LIVE
    ends = duration(timer["remaining_s"]) if timer else NONE
    return (
        run["id"],
        run["recipe"] or "?",
        run["provider"] or "?",
        _gpu(run) or NONE,
        run["phase"] or "?",
        run["state"].replace("_", " "),
        duration(run["elapsed_s"]),
        run["usd_per_hour"] or NONE,
        money(run["spent_usd"]),
        money(run["projected_usd"]) if live else NONE,
        f"in {ends}" if timer else NONE,
        (timer.get("effective_by") or "nobody") if timer else NONE,
        _progress(run, live=live),
    )


def _progress(run: dict[str, Any], *, live: bool) -> str:
    """How far it is; of one that has failed, why."""
    if live:
        return train_words(run["train"]) if run["train"] else ""
    return run["verdict"]["cause"] if run["verdict"] else ""


def _warnings(run: dict[str, Any], look: Look) -> list[str]:
    lines = []
    if run["state"] == "still_billing":
        rate = f"${run['usd_per_hour']}/h" if run["usd_per_hour"] else "money"
        lines.append(
            f"{run['id']}: STILL BILLING {rate}: instance {run['instance_id'] or 'unknown'} is not "
            f"proven gone. Run `gpurun kill {run['id']}`, or end it in the provider's console."
        )
    elif run["timer"] and not run["timer"]["effective_by"] and run["started_at"]:
        lines.append(
            f"{run['id']}: no guard of its timer is known to be alive. Run `gpurun keeper start`."
        )
    elif bills(run) and not money_guards(run):
        lines.append(
            f"{run['id']}: no guard that can end its bill is known to be alive. "
            "Run `gpurun keeper start`."
        )
    if run["damage"]:
        lines.append(
            f"{run['id']}: damaged in the journal: {run['damage']}. Its box ends in its time; "
            "`gpurun doctor` says what else is."
        )
    trouble = run["train"] and run["train"]["trouble"]
    if run["state"] in LIVE and trouble:
        lines.append(f"{run['id']}: {trouble}.")
    painted = [look.paint(line, "red") for line in lines]
    if run["kept_until"]:
        painted.append(look.paint(f"{run['id']}: {kept_words(run)}.", "yellow"))
    if mark := _mark(run):
        painted.append(look.paint(mark, "yellow"))
    if alone := only_guard(run):
        painted.append(look.paint(alone, "yellow"))
    if late := _late(run):
        painted.append(look.paint(late, "yellow"))
    return painted


def _mark(run: dict[str, Any]) -> str:
    """Of a live run: the last of the marks that its money has passed."""
    if run["state"] not in LIVE or run["spent_usd"] is None or run["budget_usd"] is None:
        return ""
    spent, budget = Decimal(run["spent_usd"]), Decimal(run["budget_usd"])
    if not (mark := passed(spent, budget)):
        return ""
    return f"{run['id']}: {mark} % of its money is spent, {money(spent)} of {money(budget)}."


def _cap(cap: dict[str, Any]) -> str:
    return (
        f"{cap['name']}: {cap['mark']} % of it is spent or reserved, "
        f"{money(cap['counted_usd'])} of {money(cap['usd'])} at {local_time(cap['noted_at'])}; "
        f"it counts until {local_time(cap['until'])}."
    )


def _late(run: dict[str, Any]) -> str:
    """Of a training that will not end before its timer: how far it will be, and what extends it."""
    timer, forecast = run["timer"], run["forecast"]
    if not (timer and forecast) or forecast["before_timer"]:
        return ""
    minutes = math.ceil(forecast["late_s"] * SPARE_TIME / 60)
    return (
        f"{run['id']}: will not finish before its timer: {late_words(run)}. "
        f"`gpurun extend {run['id']} {minutes}m`, or its last checkpoint is all there will be."
    )


def late_words(run: dict[str, Any]) -> str:
    """As "at step 41,960 of 51,905; 8.3 h and $62.70 more"."""
    forecast, total = run["forecast"], (run["train"] or {}).get("total_steps")
    step = forecast["step_at_timer"]
    where = f"at step {step:,} of {total:,}; " if step is not None and total else ""
    return f"{where}{_longer(forecast['late_s'])} and {money(forecast['usd_late'])} more"


def _longer(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours >= 1 else f"{math.ceil(seconds / 60)} min"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _moment(iso: Any) -> str | None:
    """An instant that a box had a hand in."""
    try:
        return local_time(iso) if isinstance(iso, str) else None
    except (ValueError, OverflowError):
        return None


def _state(run: dict[str, Any]) -> str:
    code = f", exit {run['exit_code']}" if run["exit_code"] is not None else ""
    return f"{run['state'].replace('_', ' ')}{code}"


def _gpu(run: dict[str, Any]) -> str:
    return f"{run['gpu_count']}x {run['gpu']}" if run["gpu"] else ""


def _timer(timer: dict[str, Any]) -> str:
    kind = f"{timer['kind']} " if timer["kind"] else ""
    what = "kept until" if timer["kind"] == "keep" else "training stops at"
    return (
        f"{kind}timer {timer['seq']}: {what} {local_time(timer['fires_at'])}, "
        f"the box goes at {local_time(timer['ends_at'])}"
    )


def _ends(run: dict[str, Any]) -> str:
    timer = run["timer"]
    if not timer["effective_by"]:
        return "not known: no guard is known to be alive"
    at = local_time(timer["effective_at"])
    by = called(timer["effective_by"], run)
    return f"in {duration(timer['remaining_s'])}, at {at}, by {by}"


def _guard(guard: dict[str, Any], run: dict[str, Any]) -> str:
    name = called(guard["name"], run).removeprefix("the ")
    what = "ends it" if guard["ends_bill"] else "ends its processes, not its bill,"
    acts = f", {what} at {local_time(guard['fires_at'])}" if guard["fires_at"] else ""
    held = f" (timer {guard['seq']})" if guard["seq"] is not None else ""
    age_s = guard["read_back_age_s"]
    read = "never read back" if age_s is None else f"read back {duration(age_s)} ago"
    return f"{name}: {guard['state']}{held}{acts}; {read}"


def _seen(document: dict[str, Any]) -> str:
    return local_time(document["orphans_checked_at"])
