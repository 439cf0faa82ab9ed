"""Which row is the box of a label of ours (protocol W8, F46, F77).

Once the id is known it alone tells: a label may be borne by another box too.  An id may have been
given again, and a label changed in the console; the time of creation tells those apart.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gpurun.model import Instance

BEFORE_SENT = timedelta(seconds=60)  # two clocks may differ by this much


def is_box_of(
    row: Instance,
    label: str,
    instance_id: str | None,
    created_at: datetime | None,
    sent_at: datetime | None,
) -> bool:
    """`created_at` by the provider's word, `sent_at` when it was asked for; None: not known."""
    if instance_id is None:
        return row.label == label and came_after(row, sent_at)
    if row.id != instance_id:
        return False
    return row.label == label or created_at is None or row.created_at in (None, created_at)


def came_after(row: Instance, sent_at: datetime | None) -> bool:
    """Whether it may be what was sent for then; without a date it may."""
    if sent_at is None or row.created_at is None:
        return True
    return row.created_at >= sent_at - BEFORE_SENT


def twins_among(rows: Iterable[Instance], sent_at: datetime | None) -> list[Instance]:
    """Those that the request sent then must have made too: one without a date may be anybody's."""
    return [row for row in rows if row.created_at and sent_at and came_after(row, sent_at)]


def age(row: Instance) -> tuple[bool, float]:
    """To sort by: the oldest first, those without a date last."""
    return row.created_at is None, row.created_at.timestamp() if row.created_at else 0.0
