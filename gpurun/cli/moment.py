"""A moment in the past, as people write it."""

import re
from datetime import datetime, timedelta

from gpurun.errors import UsageError

UNITS_H = {"h": 1, "d": 24, "w": 7 * 24}


def ago(text: str, now: datetime) -> datetime:
    """Of "30d", "12h", "2w", or of a date or instant, by the reader's own clock if it names none.

    UsageError of what is neither, of the future, and of what no calendar holds.
    """
    plain = text.strip()
    try:
        if matched := re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hdw])", plain.lower()):
            moment = now - timedelta(hours=float(matched[1]) * UNITS_H[matched[2]])
        else:
            moment = datetime.fromisoformat(plain).astimezone(now.tzinfo)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since {text!r} is no time: write 30d, 12h, 2w, or a date such as 2026-11-01"
        ) from error
    if moment > now:
        raise UsageError(f"--since {text} is in the future: write 30d, 12h, or a date before today")
    return moment
