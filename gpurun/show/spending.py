"""What many runs have cost, and the bills as comma separated values."""

import csv
import io
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from gpurun.glance.since import BY
from gpurun.show.text import NONE, Look, local_time, money, printable, table

TITLES = {"recipe": "RECIPE", "provider": "PROVIDER", "gpu": "GPU"}
TOTAL = "total"
DOLLARS = ("reserved_usd", "accrued_usd", "settled_usd", "usd", "wasted_usd")
HEAD = ("by", "name", "recipe", "provider", "gpu", "runs", "phase", "hours", *DOLLARS)


def since_text(document: dict[str, Any], look: Look) -> str:
    since = local_time(document["since"])
    if not document["runs"]:
        return f"no run has lived since {since}; `gpurun status --all` lists those before"
    runs = f"{document['runs']} run" + ("s" if document["runs"] != 1 else "")
    wasted = f"{money(document['wasted_usd'])} of it wasted{_in_brackets(document)}"
    spent = f"{document['hours']:.1f} h, {money(document['usd'])}, {wasted}"
    lines = [f"{runs} that lived since {since}, each from its beginning: {spent}"]
    for by in BY:
        rows = [_row(group) for group in document[f"by_{by}"]]
        head = (TITLES[by], "RUNS", "HOURS", "COST", "WASTED", "SHARE")
        lines += _section(table(head, rows, look, right=(1, 2, 3, 4, 5)), look)
    phases = [(phase["name"], money(phase["usd"])) for phase in document["phases"]]
    lines += _section(table(("PHASE", "COST"), phases, look, right=(1,)), look)
    return "\n".join(lines)


def since_csv(document: dict[str, Any]) -> str:
    """Of all runs together, and of each group: a line for each phase, and one for their total."""
    groups = [({"by": "all"}, document)]
    groups += [
        ({"by": by, "name": group["name"], by: group["name"]}, group)
        for by in BY
        for group in document[f"by_{by}"]
    ]
    return _csv(line for which, group in groups for line in _lines(which, group))


def report_csv(document: dict[str, Any]) -> str:
    """Of one run the same, with the hours of each phase."""
    gpu = f"{document['gpu_count']}x {document['gpu']}" if document["gpu"] else None
    which = {key: document[key] for key in ("recipe", "provider")}
    which |= {"by": "run", "name": document["id"], "gpu": gpu}
    phases, bills = document["phases"], document.get("bills", [])
    run = {
        "runs": 1,
        "hours": sum(phase["seconds"] for phase in phases) / 3600,
        "reserved_usd": sum((Decimal(bill["reserved_usd"]) for bill in bills), Decimal(0)),
        "phases": phases,
    }
    return _csv(_lines(which, run))


def _lines(which: dict[str, Any], group: dict[str, Any]) -> Iterable[dict[str, Any]]:
    which = which | {"runs": group["runs"]}
    total = dict.fromkeys(DOLLARS, Decimal(0)) | {"reserved_usd": Decimal(group["reserved_usd"])}
    for phase in group["phases"]:
        seconds = phase.get("seconds")
        hours = {} if seconds is None else {"hours": f"{seconds / 3600:.4f}"}
        yield which | {"phase": phase["name"]} | hours | {name: phase[name] for name in DOLLARS}
        total = {name: usd + Decimal(phase[name]) for name, usd in total.items()}
    hours = {"hours": f"{group['hours']:.4f}"}
    yield which | {"phase": TOTAL} | hours | {name: f"{usd:.2f}" for name, usd in total.items()}


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


def _cell(value: object) -> str:
    """Text that a spreadsheet does not take for a formula."""
    if value is None:
        return ""
    text = printable(str(value))
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def _csv(lines: Iterable[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, HEAD, restval="", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _cell(value) for name, value in line.items()})
    return out.getvalue().rstrip("\n")
