"""The document of one run, as `status --json` shows it (docs/json.md)."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.budget import CENT
from gpurun.glance import money
from gpurun.glance.damage import damage_of
from gpurun.glance.forecast import forecast, projected
from gpurun.glance.guards import (
    Guard,
    guards_of,
    if_lost_document,
    timer_document,
    timer_in_force,
)
from gpurun.glance.reader import Row
from gpurun.glance.rows import Keeper, Parts, instant, iso, may_bill, parsed
from gpurun.model import SETTLED, AttemptState, RunState

Document = dict[str, Any]

LIVE = (RunState.ACTIVE, RunState.STILL_BILLING)
TRAIN_KEYS = (
    "step",
    "total_steps",
    "it_per_s",
    "samples_per_s",
    "loss",
    "gpu_util",
    "power_w",
    "gpu_mem_gib",
    "eta_s",
    "last_checkpoint_at",
    "trouble",
)
VERDICT_KEYS = ("cause", "says", "cure", "evidence")
STILL_BILLING_EXIT = 10
LARGEST = 1e18


def document(parts: Parts, keeper: Keeper, now: datetime) -> Document:
    run, attempt = parts.run, parts.attempt
    state = state_of(parts)
    timer = timer_in_force(attempt, parts.timers[attempt["label"]] if attempt else [])
    guards: list[Guard] = []
    if attempt and timer:
        guards = guards_of(attempt, timer, parts.guards[attempt["label"]], keeper, now)
    shown_timer = timer_document(timer, guards, now) if timer else None
    train = _train(run.get("progress_json"))
    rate, spent = money.usd_per_hour(parts), money.spent_usd(parts, now)
    fires_at = instant(timer["fires_at"]) if timer else None
    expected = forecast(state, train, rate, None if run.get("ending") else fires_at, now)
    ends_at = instant(timer["ends_at"]) if timer and any(map(may_bill, parts.attempts)) else None
    need = _need(run)
    return {
        "id": run["id"],
        "recipe": run.get("recipe_name"),
        "provider": run.get("provider"),
        "instance_id": attempt.get("instance_id") if attempt else None,
        "gpu": attempt.get("gpu") if attempt else need["gpu"],
        "gpu_count": attempt.get("gpu_count") if attempt else need["gpu_count"],
        "phase": run.get("phase"),
        "state": state,
        "reason": run.get("reason") or None,
        "exit_code": _exit_code(state, run.get("exit_code")),
        "started_at": iso(instant(run.get("created_at"))),
        "elapsed_s": _elapsed_s(run, state, now),
        "usd_per_hour": money.rate_text(rate),
        "spent_usd": str(money.cents(spent)),
        "projected_usd": str(
            money.cents(projected(spent, rate, expected if ends_at else None, ends_at, now))
        ),
        "budget_usd": _budget(run),
        "timer": shown_timer,
        "kept_until": iso(fires_at) if timer and timer.get("kind") == "keep" else None,
        "guards": [guard.document(now) for guard in guards],
        "if_lost": _if_lost(attempt, timer, guards, rate, keeper),
        "train": train,
        "task": _task(run),
        "forecast": expected,
        "verdict": _verdict(run.get("progress_json")),
        "collected_at": iso(instant(run.get("collected_at"))),
        "collected_step": _collected_step(run),
        "collect_to": parsed(run.get("recipe_json"), {}).get("collect_to"),
        "links": {"wandb": parsed(run.get("progress_json"), {}).get("wandb")},
        "git": _git(run),
        "receipt": _receipt(parts),
        "damage": damage_of(parts),
        "error": run.get("error") or None,
    }


def state_of(parts: Parts) -> str:
    """A box that came back after its run was finished bills, whatever was written then (I20)."""
    state = str(parts.run.get("state"))
    billing = [row for row in parts.attempts if may_bill(row) and row["state"] != "ghost"]
    return RunState.STILL_BILLING.value if state not in LIVE and billing else state


def destroyed_at(parts: Parts) -> datetime | None:
    """When the last box was proven gone; None while any may bill."""
    if any(row.get("state") not in SETTLED for row in parts.attempts):
        return None
    gone = [at for row in parts.attempts if (at := instant(row.get("gone_at")))]
    return max(gone, default=None)


def _if_lost(
    attempt: Row | None,
    timer: Row | None,
    guards: list[Guard],
    rate: Decimal | None,
    keeper: Keeper,
) -> Document | None:
    if attempt is None or timer is None or not may_bill(attempt):
        return None
    account_id = str(attempt.get("account_id"))
    wallet = keeper.wallets.get((str(attempt.get("provider")), account_id))
    return if_lost_document(timer, guards, rate, account_id, wallet)


def _elapsed_s(run: dict[str, Any], state: str, now: datetime) -> float | None:
    began_at = instant(run.get("created_at"))
    until = now if state in LIVE else instant(run.get("finished_at")) or now
    return None if began_at is None else round(max(0.0, (until - began_at).total_seconds()), 1)


def _exit_code(state: str, stored: int | None) -> int | None:
    if state == RunState.ACTIVE:
        return None
    return STILL_BILLING_EXIT if state == RunState.STILL_BILLING else stored


def _task(run: dict[str, Any]) -> Document | None:
    """The last recipe that `up --on` began on this box; None for a box of one recipe."""
    options = parsed(run.get("options_json"), {})
    if not options.get("task"):
        return None
    result = parsed(run.get("progress_json"), {}).get("task_result") or {}
    return {
        "number": options["task"],
        "recipe": options.get("task_recipe"),
        "exit_code": result.get("exit_code"),
        "reason": result.get("reason"),
    }


def _collected_step(run: dict[str, Any]) -> int | None:
    """The newest step that bears its number in the name of a file that was fetched."""
    files = parsed(run.get("collected_json"), [])
    names = [str(file.get("path")) for file in files if isinstance(file, dict)]
    steps = [int(found[1]) for name in names if (found := re.search(r"step_(\d{1,12})", name))]
    return max(steps, default=None)


def _train(progress_json: str | None) -> Document | None:
    progress = parsed(progress_json, {})
    return {key: _figure(progress.get(key)) for key in TRAIN_KEYS} if progress else None


def _verdict(progress_json: str | None) -> Document | None:
    """Why the training failed, once somebody has looked."""
    verdict = parsed(progress_json, {}).get("verdict")
    if not isinstance(verdict, dict):
        return None
    return {key: str(verdict.get(key, "")) for key in VERDICT_KEYS}


def _figure(value: Any) -> int | float | str | None:
    """What a training said of itself, if it can be shown: JSON knows no NaN, clocks no 10^300."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if abs(value) < LARGEST else None
    return value if isinstance(value, str) else None


def _need(run: dict[str, Any]) -> Document:
    need = parsed(run.get("recipe_json"), {}).get("need") or {}
    wants = need.get("gpu") not in (None, "none")
    return {
        "gpu": need.get("gpu") if wants else None,
        "gpu_count": need.get("gpu_count") if wants else 0,
    }


def _budget(run: dict[str, Any]) -> str | None:
    budget = parsed(run.get("recipe_json"), {}).get("budget") or {}
    if budget.get("max_usd") is None:
        return None
    return str(money.dollars(budget["max_usd"]).quantize(CENT))


def _git(run: dict[str, Any]) -> Document:
    git = parsed(run.get("options_json"), {}).get("git") or {}
    return {"commit": git.get("commit"), "dirty": git.get("dirty")}


def _receipt(parts: Parts) -> Document | None:
    """Who ended the run, and what proves that its last box is gone."""
    gone_at = destroyed_at(parts)
    if gone_at is None:
        return None
    last = max(
        (row for row in parts.attempts if row.get("state") == AttemptState.GONE),
        key=lambda row: float(row.get("gone_at") or 0),
    )
    return {
        "ended_by": parts.run.get("ending"),
        "delete_acked_at": iso(instant(last.get("delete_acked_at"))),
        "gone_at": iso(gone_at),
        "evidence": parsed(last.get("evidence_json"), {}),
    }
