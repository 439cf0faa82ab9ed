"""What many runs have cost, and the bills as comma separated values."""

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from gpurun.glance.since import BY, PHASES
from gpurun.show.text import NONE, Look, local_time, money, printable, table

TITLES = {"recipe": "RECIPE", "provider": "PROVIDER", "gpu": "GPU"}
OTHER = "other"


def since_text(document: dict[str, Any], look: Look) -> str:
    since = local_time(document["since"])
    if not document["runs"]:
        return f"no run began since {since}; `gpurun status --all` lists those before"
    runs = f"{document['runs']} run" + ("s" if document["runs"] != 1 else "")
    wasted = f"{money(document['wasted_usd'])} of it wasted{_in_brackets(document)}"
    lines = [f"{runs} since {since}: {document['hours']:.1f} h, {money(document['usd'])}, {wasted}"]
    for by in BY:
        rows = [_row(group) for group in document[f"by_{by}"]]
        head = (TITLES[by], "RUNS", "HOURS", "COST", "WASTED", "SHARE")
        lines += _section(table(head, rows, look, right=(1, 2, 3, 4, 5)), look)
    phases = [(phase["name"], money(phase["usd"])) for phase in document["phases"]]
    lines += _section(table(("PHASE", "COST"), phases, look, right=(1,)), look)
    return "\n".join(lines)


def since_csv(document: dict[str, Any]) -> str:
    """A line for each group, and one for all; dollars by phase in columns."""
    head = ["by", "name", "runs", "hours", "usd", "wasted_usd", "wasted_share"]
    groups = [("all", document | {"name": None})]
    groups += [(by, group) for by in BY for group in document[f"by_{by}"]]
    rows = (
        [by, *(_cell(group[key]) for key in head[1:]), *_by_phase(group["phases"])]
        for by, group in groups
    )
    return _csv([*head, *(f"{phase}_usd" for phase in (*PHASES, OTHER))], rows)


def report_csv(document: dict[str, Any]) -> str:
    """A line for each phase of one run."""
    run = [_cell(document[key]) for key in ("id", "recipe", "provider", "gpu", "gpu_count")]
    head = ["run", "recipe", "provider", "gpu", "gpu_count", "phase", "seconds", "usd"]
    rows = (
        [*run, _cell(phase["name"]), phase["seconds"], phase["usd"]] for phase in document["phases"]
    )
    return _csv(head, rows)


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    share = group["wasted_share"]
    return (
        printable(group["name"] or NONE),
        str(group["runs"]),
        f"{group['hours']:.1f}",
        money(group["usd"]),
        money(group["wasted_usd"]),
        NONE if share is None else f"{share:.0%}",
    )


def _section(lines: list[str], look: Look) -> list[str]:
    head, *body = lines
    return ["", look.paint(head, "bold"), *body]


def _in_brackets(document: dict[str, Any]) -> str:
    share = document["wasted_share"]
    return "" if share is None else f" ({share:.0%})"


def _by_phase(phases: list[dict[str, Any]]) -> list[str]:
    """Every known phase, and the rest, which a newer gpurun has booked, in one."""
    usd = {phase["name"]: phase["usd"] for phase in phases}
    others = sum(
        (Decimal(amount) for name, amount in usd.items() if name not in PHASES), Decimal(0)
    )
    return [*(usd.get(name, "0.00") for name in PHASES), f"{others:.2f}"]


def _cell(value: object) -> str:
    """Text that a spreadsheet does not take for a formula."""
    if value is None:
        return ""
    text = printable(str(value))
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
