"""The bill: phase, duration, cost; what was fetched; and that nothing bills any more."""

from decimal import Decimal
from typing import Any

from gpurun.show.text import Look, duration, local_time, money, printable, size, table

WASTED = {
    "no_step_usd": "on boxes that ended before their first step",
    "waiting_usd": "waiting for boxes and their checks",
    "idle_usd": "idle",
    "ending_usd": "ending boxes",
}

NOTES = ("note", "raised")


def report_text(document: dict[str, Any], look: Look) -> str:
    """Of a final document; of a report's also its bills, and what armed and fired."""
    phases = document["phases"]
    total_s = sum(phase["seconds"] for phase in phases)
    total_usd = sum((Decimal(phase["usd"]) for phase in phases), Decimal(0))
    rows = [(p["name"], duration(p["seconds"]), money(p["usd"])) for p in phases]
    rows.append(("total", duration(total_s), money(total_usd)))
    head, *body, total = table(("PHASE", "DURATION", _cost(document)), rows, right=(1, 2))
    lines = [look.paint(head, "bold"), *body, look.paint(total, "bold")]
    lines += _wasted(document["wasted"])
    lines += _artifacts(document["artifacts"])
    notes = (event for event in document.get("events", []) if event["what"] in NOTES)
    lines += [f"{event['what']}: {printable(event['detail'])}" for event in notes]
    for bill in document.get("bills", []):
        lines += _bill(bill)
    for timer in document.get("timers", []):
        lines.append(_timer(timer))
    lines.append(_end(document, look))
    return "\n".join(lines)


def _cost(document: dict[str, Any]) -> str:
    """With the rate, where it is one; a run of several boxes has paid several."""
    several = len(document.get("bills", [])) > 1
    rate = document["usd_per_hour"]
    return "COST" if several or rate is None else f"COST @ ${rate}/h"


def _wasted(wasted: dict[str, Any]) -> list[str]:
    if not Decimal(wasted["usd"]):
        return []
    parts = ((WASTED[key], wasted[key]) for key in WASTED if Decimal(wasted[key]))
    why = ", ".join(f"{money(usd)} {words}" for words, usd in parts)
    return [f"wasted {money(wasted['usd'])} ({wasted['share']:.0%}): {why}"]


def _artifacts(artifacts: list[dict[str, Any]]) -> list[str]:
    if not artifacts:
        return ["collected nothing"]
    rows = [(printable(a["path"]), size(a["bytes"]), a["sha256"][:12]) for a in artifacts]
    return ["", *table(("ARTIFACT", "SIZE", "SHA256"), rows, right=(1,)), ""]


def _bill(bill: dict[str, Any]) -> list[str]:
    """Nothing of a provider that charges by nobody's clock but ours."""
    box, accrued = f"{bill['provider']} {bill['instance_id']}", money(bill["accrued_usd"])
    late = f"{money(bill['tail_usd'])} for its tail, {money(bill['traffic_usd'])} for its traffic"
    if bill["charged_usd"] is not None:
        return [f"settled: {box} was charged {money(bill['charged_usd'])}, {accrued} had accrued"]
    if bill["awaited"]:
        return [f"not yet billed by {box}; shown: {accrued} accrued, {late}"]
    if Decimal(bill["reserved_usd"]) > 0:
        return [f"{box}: {accrued} accrued of {money(bill['reserved_usd'])} reserved"]
    return []


def _timer(timer: dict[str, Any]) -> str:
    fired = (
        f", fired {local_time(timer['fired_at'])} by {timer['fired_by']}"
        if timer["fired_at"]
        else ""
    )
    return (
        f"timer {timer['seq']} ({timer['kind']}, {timer['state'].replace('_', ' ')}): "
        f"{local_time(timer['fires_at'])} / {local_time(timer['ends_at'])}{fired}"
    )


def _end(document: dict[str, Any], look: Look) -> str:
    spent = money(document["spent_usd"])
    if document["destroyed_at"]:
        return look.paint(f"destroyed, {spent}", "green")
    if document["state"] == "still_billing":
        return look.paint(f"STILL BILLING, {spent} so far: not proven gone", "red")
    if document["instance_id"] is None and document["state"] != "active":
        return f"nothing was rented, {spent}"
    return f"not destroyed yet, {spent} so far"
