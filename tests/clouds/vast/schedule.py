"""Scheduled jobs at the emulated Vast: requests that its own servers make at full hours.

Facts that shape it: a job fires at minute 0 of each hour, beginning with the hour that *contains*
its start time, about 14 s late; one job per endpoint, a second POST is 422; with
`min_of_the_hour` set, or once updated, a job never fires; it repeats until its end time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

LATE_S = 14
HOUR = timedelta(hours=1)
FREQUENCIES = ("HOURLY", "DAILY", "WEEKLY")


@dataclass(slots=True)
class Job:
    id: int
    instance_id: str
    endpoint: str
    method: str
    body: Mapping[str, Any]
    start: datetime
    end: datetime
    frequency: str
    day: int | None  # 0 is Sunday
    hour: int | None
    minute: int | None = None
    updated: bool = False
    removed: bool = False

    def next_after(self, now: datetime) -> datetime | None:
        """When it fires next, strictly later than now; None: never."""
        if self.updated or self.removed or self.minute is not None:
            return None
        at = max(full_hour(self.start), full_hour(now))
        if at + timedelta(seconds=LATE_S) <= now:
            at += HOUR
        for _ in range(24 * 8):
            if at > self.end:
                return None
            if self._due_in(at):
                return at + timedelta(seconds=LATE_S)
            at += HOUR
        return None

    def row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "instance_id": int(self.instance_id) if self.instance_id.isdigit() else None,
            "api_endpoint": self.endpoint,
            "request_method": self.method,
            "request_body": dict(self.body),
            "start_time": self.start.timestamp(),
            "end_time": self.end.timestamp(),
            "day_of_the_week": self.day,
            "hour_of_the_day": self.hour,
            "min_of_the_hour": 0 if self.minute is None else self.minute,
            "frequency": self.frequency,
        }

    def _due_in(self, hour: datetime) -> bool:
        right_hour = self.hour is None or hour.hour == self.hour
        return right_hour and (self.day is None or hour.isoweekday() % 7 == self.day)


def full_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def read(number: int, body: Mapping[str, Any]) -> Job:
    """A job from a request's body; ValueError says what is wrong with it."""
    try:
        start, end = (moment(body[name]) for name in ("start_time", "end_time"))
        endpoint, method = str(body["api_endpoint"]), str(body["request_method"])
        frequency = str(body["frequency"])
    except (KeyError, TypeError) as lacking:
        raise ValueError(f"invalid scheduled job: {lacking}") from lacking
    day, hour = body.get("day_of_the_week"), body.get("hour_of_the_day")
    wanted = {"HOURLY": (False, False), "DAILY": (False, True), "WEEKLY": (True, True)}
    if wanted.get(frequency) != (day is not None, hour is not None):
        raise ValueError(f"frequency {frequency} does not go with this day and hour")
    if start >= end:
        raise ValueError("start_time must be before end_time")
    return Job(
        id=number,
        instance_id=str(body.get("instance_id")),
        endpoint=endpoint,
        method=method,
        body=body.get("request_body") or {},
        start=start,
        end=end,
        frequency=frequency,
        day=day,
        hour=hour,
        minute=body.get("min_of_the_hour"),
    )


def moment(epoch_s: Any) -> datetime:
    return datetime.fromtimestamp(float(epoch_s), UTC)
