"""What accounts hold under no timer of ours, as a table."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from gpurun.show.text import NONE, Look, printable, table

HEAD = ("PROVIDER", "ID", "LABEL", "STATE", "$/H", "WHOSE")
RIGHT = (4,)
SPARE = (2,)
WHOSE = {
    "ours": "ours, its timer is over or unknown here",
    "other_owner": "gpurun of another owner",
    "probably_ours": "probably ours: it came after a purchase",
    "foreign": "not gpurun's",
}
NOT_TOLD = "not told"


def orphans_lines(orphans: Sequence[Mapping[str, Any]], look: Look) -> list[str]:
    """By the documents of `gpurun orphans --json`; an empty list has no lines."""
    if not orphans:
        return []
    head, *rows = table(HEAD, [_row(each) for each in orphans], look, right=RIGHT, spare=SPARE)
    return [look.paint(head, "bold"), *rows, _total(orphans)]


def _row(orphan: Mapping[str, Any]) -> tuple[str, ...]:
    """A name comes from whoever rents there."""
    state = orphan["state"] or NONE
    whose = WHOSE.get(orphan["whose"] or "", NONE)
    owner = f" ({printable(orphan['owner_id'])})" if orphan["whose"] == "other_owner" else ""
    return (
        orphan["provider"],
        printable(orphan["instance_id"]),
        printable(orphan["label"]) or NONE,
        f"{state} disk" if orphan["kind"] == "disk" else state,
        orphan["usd_per_hour"] or NOT_TOLD,
        whose + owner,
    )


def _total(orphans: Sequence[Mapping[str, Any]]) -> str:
    rates = [Decimal(each["usd_per_hour"]) for each in orphans if each["usd_per_hour"]]
    silent = len(orphans) - len(rates)
    more = f", and {silent} of unknown rate" if silent else ""
    things = "1 thing" if len(orphans) == 1 else f"{len(orphans)} things"
    return (
        f"{things} under no timer of gpurun here: ${sum(rates, Decimal(0))}/h{more}. "
        "End one with `gpurun orphans --kill ID`"
    )
