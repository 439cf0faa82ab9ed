"""Runs by the black box alone: what is known of a box when the journal cannot say it."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gpurun.blackbox import Entry, read_entries
from gpurun.glance import money
from gpurun.glance.rows import iso
from gpurun.model import AttemptState, RunState

LOUD_AFTER = timedelta(seconds=60)
_LABEL = re.compile(r"gpurun-[a-z0-9]+-([a-z0-9]+)-[a-z0-9]+")


def live_entries(blackbox: Path) -> list[Entry]:
    """Of labels that may bill; none when there is no such file, or none that can be read."""
    try:
        entries = read_entries(blackbox).values()
    except OSError:
        return []
    return [e for e in entries if not e.settled and e.state != AttemptState.INTENT]


def run_id_of(label: str) -> str:
    matched = _LABEL.fullmatch(label)
    return matched[1] if matched else label


def document(entry: Entry, why: str, now: datetime) -> dict[str, Any]:
    """The same keys as a run of the journal; what the line does not hold is null."""
    overdue = now - entry.ends_at > LOUD_AFTER
    return {
        "id": run_id_of(entry.label),
        "recipe": None,
        "provider": entry.provider,
        "instance_id": entry.instance_id,
        "gpu": None,
        "gpu_count": None,
        "phase": None,
        "state": (RunState.STILL_BILLING if overdue else RunState.ACTIVE).value,
        "reason": None,
        "exit_code": 10 if overdue else None,
        "started_at": None,
        "elapsed_s": None,
        "usd_per_hour": money.rate_text(entry.usd_per_hour),
        "spent_usd": None,
        "projected_usd": None,
        "budget_usd": None,
        "timer": {
            "kind": None,
            "seq": entry.seq,
            "fires_at": iso(entry.fires_at),
            "ends_at": iso(entry.ends_at),
            "remaining_s": round(max(0.0, (entry.ends_at - now).total_seconds()), 1),
            "effective_at": None,
            "effective_by": None,
        },
        "kept_until": None,
        "guards": [],
        "if_lost": None,
        "train": None,
        "task": None,
        "forecast": None,
        "verdict": None,
        "collected_at": None,
        "collected_step": None,
        "collect_to": None,
        "links": {"wandb": None},
        "git": {"commit": None, "dirty": None},
        "receipt": None,
        "damage": None,
        "error": why,
    }
