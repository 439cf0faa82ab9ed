"""A DELETE that Vast's own servers send: the one guard that works while an image is pulled, after
Vast has stopped a box, and with this machine off.

Facts that shape it: a job fires at minute 0 of each hour, from the hour that holds its start time
on, until its end time; there is one per endpoint, a second POST is 422; a job that was changed, or
has `min_of_the_hour`, was seen never to fire, so another time is another job; that DELETE is
allowed is promised nowhere.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from gpurun.errors import ProviderError, ProviderUnreachable, TimerRefused
from gpurun.provider import ProviderTimer
from provisioners.vast.wire import V0, Wire, trouble

PATH = f"{V0}/commands/schedule_job/"
HOUR = timedelta(hours=1)
AFTER = timedelta(minutes=5)  # behind the fuse, which is 2 minutes behind the deadline
REPEATS = timedelta(hours=48)


def fires_at(ends_at: datetime) -> datetime:
    """The first full hour at or after the deadline and five minutes."""
    earliest = ends_at.astimezone(UTC) + AFTER
    hour = earliest.replace(minute=0, second=0, microsecond=0)
    return hour if hour == earliest else hour + HOUR


def held(wire: Wire, instance_id: str) -> ProviderTimer | None:
    """The first to fire of those that end this instance."""
    found = filter(None, map(_timer, _deletes(wire, instance_id)))
    return min(found, key=lambda timer: timer.fires_at, default=None)


def all_held(wire: Wire) -> dict[str, ProviderTimer]:
    """As `held`, of every instance, by its id."""
    found: dict[str, ProviderTimer] = {}
    for row in _rows(wire):
        ends = re.fullmatch(_endpoint(r"(\d+)"), str(row.get("api_endpoint")))
        timer = _timer(row) if ends and row.get("request_method") == "DELETE" else None
        if ends and timer:
            known = found.get(ends[1], timer)
            found[ends[1]] = min(known, timer, key=lambda each: each.fires_at)
    return found


def arm(wire: Wire, instance_id: str, ends_at: datetime) -> ProviderTimer | None:
    """In place of every other; None where the answer was lost and it is not listed."""
    due = fires_at(ends_at)
    before = _deletes(wire, instance_id)
    if len(before) == 1 and (timer := _timer(before[0])) and timer.fires_at == due:
        return timer
    for row in before:
        _remove(wire, row)
    refusal = _post(wire, instance_id, due)
    now = held(wire, instance_id)
    if now is None and refusal:
        raise TimerRefused(f"vast takes no scheduled end for instance {instance_id}: {refusal}")
    return now


def disarm(wire: Wire, instance_id: str) -> None:
    for row in _deletes(wire, instance_id):
        _remove(wire, row)
    if left := _deletes(wire, instance_id):
        raise ProviderError(f"vast still lists the scheduled end {left[0].get('id')}")


def _deletes(wire: Wire, instance_id: str) -> list[Mapping[str, Any]]:
    """Matched by what they would do, so that one whose answer was lost is found too."""
    wanted = ("DELETE", _endpoint(instance_id))
    return [
        row for row in _rows(wire) if (row.get("request_method"), row.get("api_endpoint")) == wanted
    ]


def _rows(wire: Wire) -> list[Mapping[str, Any]]:
    what = "the list of scheduled jobs"
    rows = wire.get(what, PATH).body
    if not isinstance(rows, list):
        raise ProviderError(f"vast: no list in the answer to {what}")
    return [row for row in rows if isinstance(row, dict)]


def _timer(row: Mapping[str, Any]) -> ProviderTimer | None:
    """None for a job that would not fire at the next hours."""
    if row.get("frequency") != "HOURLY":
        return None
    try:
        start = datetime.fromtimestamp(float(row["start_time"]), UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    return ProviderTimer(str(row.get("id")), start.replace(minute=0, second=0, microsecond=0))


def _post(wire: Wire, instance_id: str, due: datetime) -> str:
    """What Vast has against it; a lost answer is nothing against it: the list will tell."""
    start = due + timedelta(seconds=1)
    body = {
        "start_time": int(start.timestamp()),
        "end_time": int((due + REPEATS).timestamp()),
        "api_endpoint": _endpoint(instance_id),
        "request_method": "DELETE",
        "request_body": {},
        "day_of_the_week": None,
        "hour_of_the_day": None,
        "frequency": "HOURLY",
        "instance_id": int(instance_id),
    }
    try:
        answer = wire.send("POST", PATH, body=body)
    except httpx.RequestError as error:
        if isinstance(error, httpx.ConnectError):
            raise ProviderUnreachable(f"vast: no answer to a schedule: {trouble(error)}") from None
        return ""
    refused = (400 <= answer.status < 500 and answer.status not in (422, 429)) or answer.denied
    return answer.said if refused else ""


def _remove(wire: Wire, row: Mapping[str, Any]) -> None:
    what = f"the removal of scheduled job {row.get('id')}"
    answer = wire.ask(what, "DELETE", f"{PATH}{row.get('id')}/", body={})
    if answer.status != 404:
        wire.accepted(what, answer)


def _endpoint(instance_id: str) -> str:
    return f"{V0}/instances/{instance_id}/"
