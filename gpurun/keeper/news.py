"""What of a run is worth a message: a pure function of its document (docs/json.md)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpurun.budget import cost
from gpurun.glance.money import cents
from gpurun.glance.rows import iso
from gpurun.keeper.telling import Louder
from gpurun.marks import MARKS, passed
from gpurun.show.risk import alive, lacks_guards, lacks_keeper
from gpurun.show.text import duration, local_time, printable

Document = dict[str, Any]

OVER = ("done", "failed", "killed", "deadline")
STUCK = ("hang", "idle", "watchdog", "nccl-timeout")  # how the causes of such a verdict begin
LONGEST = 400
MOST_MARKS = 8


@dataclass(frozen=True, slots=True)
class News:
    """One event of one run, or of none; of several alike each has a key of its own."""

    run_id: str
    event: str
    title: str
    body: str
    again: str = ""

    @property
    def key(self) -> str:
        """What it is known by once it was told."""
        return f"{self.event} {self.again}" if self.again else self.event


def news_of(
    run: Document, on: Collection[str], told: Collection[str], louder: Louder
) -> list[News]:
    """What is wanted, holds now and has not been told; of the money only the highest mark."""
    found = _holds(run, on, told, louder)
    return [each for each in found if each.event in on and each.key not in told]


def highest(last: int, on: Collection[str], told: Collection[str], again: str) -> str:
    """Of the marks that are wanted the last one that was passed: the lower ones are no news then,
    nor once a higher one was told.
    """
    for mark in (f"{each}%" for each in reversed(MARKS)):
        if f"{mark} {again}" in told:
            return ""
        if int(mark[:-1]) <= last and mark in on:
            return mark
    return ""


def _holds(
    run: Document, on: Collection[str], told: Collection[str], louder: Louder
) -> Iterator[News]:
    name, state = printable(run["recipe"] or "a run"), run["state"]
    if run["verdict"] and run["verdict"]["cause"].startswith(STUCK):
        yield _news(run, "stuck", f"{name} is stuck", run["verdict"]["says"])
    if state == "still_billing":
        yield _still_billing(run, name, louder)
    elif state in OVER:
        yield _end(run, name)
    else:
        yield from _of_live(run, name)
        yield from _money(run, name, on, told)


def _of_live(run: Document, name: str) -> Iterator[News]:
    timer = run["timer"]
    if run["instance_id"] is not None:
        yield _news(run, "started", f"{name} has a box", f"It may cost {_dollars(run)} at most.")
    if timer is not None and timer["kind"] == "run":
        yield _news(
            run,
            "armed",
            f"{name}: its timer is armed",
            f"Its dataset is verified. It trains until {local_time(timer['fires_at'])} at the "
            f"latest; its box goes by {local_time(timer['ends_at'])}.",
        )
    if run["kept_until"] is not None:
        yield _kept(run, name)
    if lacks_guards(run):
        yield _guards(run, name)


def _guards(run: Document, name: str) -> News:
    held = alive(run)
    holding = " and ".join(held) or "nothing"
    says = "Fewer than two guards are alive: if it fails, nothing ends the bill."
    if lacks_keeper(run):
        says = (
            f"gpurun's keeper does not see {printable(run['provider'] or 'its provider')}, so that "
            "it can end nothing there; if its key was revoked, `gpurun auth` takes a new one."
        )
    guard = "guard" if len(held) > 1 else "guards"
    says = f"{says} `gpurun status {run['id']}` shows them."
    return _news(run, "guards", f"{name}: only {holding} {guard} its box", says)


def _still_billing(run: Document, name: str, louder: Louder) -> News:
    """The first time in a word; then with what it comes to, and an exclamation mark each time."""
    title, since = f"{name} is STILL BILLING", ""
    if louder.first_at is not None and louder.times:
        by_now = f"${run['spent_usd'] or '?'} by now"
        title = f"{title}, {by_now}{'!' * min(louder.times, MOST_MARKS)}"
        since = f" since {local_time(iso(louder.first_at))}"
    box = f"instance {run['instance_id']}" if run["instance_id"] else "its instance"
    says = (
        f"Its box is not proven gone{since}; gpurun goes on ending it. `gpurun kill {run['id']}` "
        f"asks once more and says what it met; or destroy {box} in the console of "
        f"{run['provider']}."
    )
    again = str(louder.times + 1) if louder.times else ""
    return _news(run, "still_billing", title, says, again)


def _kept(run: Document, name: str) -> News:
    more = cents(cost(Decimal(run["usd_per_hour"] or 0), run["timer"]["remaining_s"] or 0.0))
    says = (
        f"{_first(run['error'] or '')}\nUntil its box is gone it costs ${more} more at most. "
        f"`gpurun ssh {run['id']}` looks into it, `gpurun kill {run['id']}` ends it now."
    )
    until = local_time(run["kept_until"])
    return _news(run, "kept", f"{name} has failed and is kept until {until}", says.strip())


def _money(run: Document, name: str, on: Collection[str], told: Collection[str]) -> Iterator[News]:
    if run["spent_usd"] is None or run["budget_usd"] is None:
        return
    last = passed(Decimal(run["spent_usd"]), Decimal(run["budget_usd"]))
    again = f"of {_dollars(run)}"  # it may be given more
    if mark := highest(last, on, told, again):
        title = f"{name} has spent {mark} of its money"
        yield _news(run, mark, title, f"{_dollars(run)} is its budget.", again)


def _end(run: Document, name: str) -> News:
    event, came_to = {
        "done": ("finished", "is done"),
        "failed": ("finished", "has failed"),
        "killed": ("killed", "was killed"),
        "deadline": ("killed", "was ended by its timer"),
    }[run["state"]]
    verdict, receipt = run["verdict"], run["receipt"]
    why = verdict["says"] if verdict else run["error"] or run["reason"] or ""
    gone = f"Its box was proven gone at {local_time(receipt['gone_at'])}." if receipt else ""
    took = f"It took {duration(run['elapsed_s'])}." if run["elapsed_s"] is not None else ""
    return _news(run, event, f"{name} {came_to}", " ".join(filter(None, (_first(why), took, gone))))


def _news(run: Document, event: str, title: str, says: str, again: str = "") -> News:
    box = f"{run['gpu_count']}x {run['gpu']}" if run["gpu"] else "no GPU"
    rate = f", ${run['usd_per_hour']}/h" if run["usd_per_hour"] else ""
    where = f"run {run['id']} at {run['provider']}, {printable(box)}{rate}"
    return News(run["id"], event, f"gpurun: {title}", f"{says}\n{where}, {_spent(run)}", again)


def _spent(run: Document) -> str:
    return f"${run['spent_usd'] or '?'} of {_dollars(run)} spent"


def _dollars(run: Document) -> str:
    return f"${run['budget_usd'] or '?'}"


def _first(text: str) -> str:
    """The first line of what may hold a log's."""
    line = printable(text.strip().partition("\n")[0])
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
