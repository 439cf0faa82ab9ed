"""What would be lost, and what it would cost, if this machine were gone when a run's box ends."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.show.text import duration, local_time, money

LIVE = ("active", "still_billing")
HERE = "local"  # the box is on this machine: off together, and its files stay
STAYS = "ssh"  # the user's own host: its files stay there
NOT_YET_ARMED = ("rent", "boot", "accept")  # until then the keeper alone guards a box
FEWEST_GUARDS = 2
KEEPER = "keeper"


def if_off(run: dict[str, Any]) -> str | None:
    """One sentence; None where there is nothing to lose."""
    kind = (run["provider"] or "").partition(":")[0]
    if run["timer"] is None or kind == HERE or run["state"] not in LIVE:
        return None
    at = local_time(run["timer"]["ends_at"])
    if run["collect_to"]:
        return f"the box pushes its results to {run['collect_to']} by itself"
    becomes = "stays on the host" if kind == STAYS else "dies with the box"
    if run["if_lost"] and not run["if_lost"]["ended_by"]:
        becomes = "stays on the box, which goes on" if kind != STAYS else becomes
    return f"if this machine is off at {at}, what is not collected {becomes} ({_last(run)})"


def if_dies(run: dict[str, Any]) -> str | None:
    """Who else ends the bill; None where nobody sends one, or this machine is the box itself."""
    lost = run["if_lost"]
    kind = (run["provider"] or "").partition(":")[0]
    if lost is None or kind == HERE or not bills(run):
        return None
    held = _wallet(lost)
    if not lost["ended_by"]:
        return (
            f"if this machine dies now, nothing else can end it: ${run['usd_per_hour']}/h until "
            f"the money is gone; {held}"
        )
    at = {guard["name"]: local_time(guard["fires_at"]) for guard in run["guards"]}
    ends = [f"{called(name, run)} ends it at {at[name]}" for name in lost["ended_by"]]
    return (
        f"if this machine dies now, {', failing that '.join(ends)} "
        f"(+{money(lost['usd_more'])} at worst)"
    )


def only_guard(run: dict[str, Any]) -> str:
    """Of a box that only one guard can end: which, and what if that is this machine's."""
    if run["state"] not in LIVE:
        return ""
    if not bills(run):
        held = alive(run)
        if len(held) != 1 or not lacks_guards(run):
            return ""
        goes_on = "if it fails, nothing ends what runs there"
        return f"{run['id']}: only {called(held[0], run)} guards its box; {goes_on}."
    able = money_guards(run)
    if len(able) != 1:
        return ""
    said = f"{run['id']}: one guard alone can end its bill now, {called(able[0], run)}"
    if able != [KEEPER]:
        return f"{said}. Run `gpurun keeper start`."
    dies = if_dies(run)
    return f"{said}; {dies}." if dies else f"{said}."


def alive(run: dict[str, Any]) -> list[str]:
    """The guards of its box that are known to hold a timer."""
    return [guard["name"] for guard in run["guards"] if guard["state"] in ("armed", "lagging")]


def lacks_guards(run: dict[str, Any]) -> bool:
    """Whether a box that ought to have them by now has fewer than two guards, or no keeper."""
    return (
        run["state"] == "active"
        and run["timer"] is not None
        and run["timer"]["kind"] != "ending"
        and run["phase"] not in NOT_YET_ARMED
        and (len(alive(run)) < FEWEST_GUARDS or lacks_keeper(run))
    )


def lacks_keeper(run: dict[str, Any]) -> bool:
    """Whether it runs no more, or its provider refuses its key: it then ends nothing on time."""
    return KEEPER not in alive(run)


def money_guards(run: dict[str, Any]) -> list[str]:
    """Those that can end the bill and are known to be alive."""
    return [
        guard["name"]
        for guard in run["guards"]
        if guard["ends_bill"] and guard["name"] in alive(run)
    ]


def bills(run: dict[str, Any]) -> bool:
    """Whether there is a box that costs something."""
    return bool(run["timer"] and run["instance_id"] and Decimal(run["usd_per_hour"] or 0))


def called(guard: str, run: dict[str, Any]) -> str:
    """A guard in words."""
    if guard == "provider":
        return f"{(run['provider'] or '').partition(':')[0]}'s scheduler"
    return f"the {guard}"


def for_plan(provider: str, collect_to: str | None) -> list[str]:
    """The same before anything is rented."""
    kind = provider.partition(":")[0]
    if kind == HERE:
        return []
    if collect_to:
        return [f"pushed by the box to {collect_to}, while it trains and before it is ended"]
    becomes = "stays on the host" if kind == STAYS else "dies with the box"
    return [
        "fetched while it trains and at its end; what is not yet fetched when this machine is off "
        f"at that moment {becomes} (`collect_to` in the recipe pushes it from there)"
    ]


def _wallet(lost: dict[str, Any]) -> str:
    if lost["wallet_usd"] is None:
        return "what your wallet holds is not known here, `gpurun status --refresh` asks"
    read = f" (at {local_time(lost['wallet_read_at'])})" if lost["wallet_read_at"] else ""
    return f"your wallet holds {money(lost['wallet_usd'])}{read}"


def _last(run: dict[str, Any]) -> str:
    if not run["collected_at"]:
        return "nothing has been collected yet"
    ago_s = run["elapsed_s"] - _since(run)
    step = f"step {run['collected_step']}, " if run["collected_step"] is not None else ""
    return f"last: {step}{duration(max(0.0, ago_s))} ago"


def _since(run: dict[str, Any]) -> float:
    """Seconds from the run's start to its last collection."""
    began, last = (datetime.fromisoformat(run[key]) for key in ("started_at", "collected_at"))
    return (last - began).total_seconds()
