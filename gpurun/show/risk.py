"""What would be lost if this machine were off when a run's box ends."""

from datetime import datetime
from typing import Any

from gpurun.show.text import duration, local_time

HERE = "local"  # the box is on this machine: off together, and its files stay
STAYS = "ssh"  # the user's own host: its files stay there


def if_off(run: dict[str, Any]) -> str | None:
    """One sentence; None where there is nothing to lose."""
    kind = (run["provider"] or "").partition(":")[0]
    if run["timer"] is None or kind == HERE or run["state"] not in ("active", "still_billing"):
        return None
    at = local_time(run["timer"]["ends_at"])
    if run["collect_to"]:
        return f"the box pushes its results to {run['collect_to']} by itself"
    becomes = "stays on the host" if kind == STAYS else "dies with the box"
    return f"if this machine is off at {at}, what is not collected {becomes} ({_last(run)})"


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
