"""A price that rises in mid-training: all guards move with the money, and the bill stays in it."""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.cloudruns.scene import Scene, scene

MAX_USD = Decimal("2.15")  # twice the price is paid for some two minutes more, tail and margin held
GUARDS = {"keeper", "fuse", "provider"}


def test_a_run_ends_sooner_by_every_guard_and_within_its_budget(tmp_path: Path) -> None:
    with scene("vast", tmp_path) as stage:
        budget = (f"budget.max_usd={MAX_USD}", "budget.max_usd_per_hour=20")
        words = [word for each in budget for word in ("--set", each)]
        run = stage.in_training(*words, setup_minutes=3, run_minutes=7)
        stage.until(lambda: held_by_all(stage, run, 1))
        before = stage.last
        stage.cloud.fault("price_up", factor=2)
        stage.until(lambda: stage.look(run)["timer"]["seq"] > before["timer"]["seq"])
        shortened = stage.last
        assert ends_at(shortened) < ends_at(before) - timedelta(minutes=2)
        stage.until(lambda: held_by_all(stage, run, shortened["timer"]["seq"]))
        fuse_at = datetime.fromisoformat(guards_of(stage.last)["fuse"]["fires_at"])
        assert fuse_at - ends_at(shortened) < timedelta(seconds=122)
        last = stage.finished(run)
        assert last["receipt"]["ended_by"] == "deadline"
        assert datetime.fromisoformat(last["receipt"]["delete_acked_at"]) < ends_at(shortened)
        outcome = stage.outcome()
        assert (outcome.state, outcome.exit_code, outcome.boxes) == ("deadline", 6, 1)
        assert outcome.leaked_usd == 0
        assert Decimal(0) < outcome.billed_usd <= Decimal(last["spent_usd"]) <= MAX_USD


def held_by_all(stage: Scene, run: str, seq: int) -> bool:
    """Whether each guard was read back with this timer or a later one."""
    guards = guards_of(stage.look(run))
    armed = [guard for guard in guards.values() if guard["state"] == "armed"]
    return set(guards) == GUARDS and len(armed) == 3 and all(each["seq"] >= seq for each in armed)


def guards_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {guard["name"]: guard for guard in document["guards"]}


def ends_at(document: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(document["timer"]["ends_at"])
