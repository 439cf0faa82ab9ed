"""A box that failed and is kept for a look: until then, and not a cent longer, by the meter."""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from gpurun.budget import cost
from tests.cloudruns.scene import scene

KEPT_S = 30.0
FAILS = "mkdir -p out; echo half > out/result.txt; exit 3"


def test_it_is_gone_in_its_time_and_bills_no_more_than_was_said(tmp_path: Path) -> None:
    with scene("vast", tmp_path) as stage:
        keep = ("--set", f"budget.keep_on_failure_minutes={KEPT_S / 60}")
        run = stage.up(*keep, train=FAILS, run_minutes=7)
        stage.until(lambda: stage.look(run)["kept_until"])
        kept = stage.last
        kept_until = datetime.fromisoformat(kept["kept_until"])
        billed_usd, left_s = stage.billed_usd(), kept["timer"]["remaining_s"]
        assert 0 < left_s <= KEPT_S + 12.1
        assert stage.alive() == 1
        last = stage.finished(run)
        acked_at = datetime.fromisoformat(last["receipt"]["delete_acked_at"])
        assert kept_until - timedelta(seconds=15) < acked_at < kept_until + timedelta(seconds=5)
        outcome = stage.outcome()
        assert (outcome.state, outcome.exit_code, outcome.boxes) == ("failed", 5, 1)
        assert outcome.leaked_usd == 0
        most_usd = cost(Decimal(kept["usd_per_hour"]), left_s + 5)
        assert Decimal(0) < outcome.billed_usd - billed_usd <= most_usd
