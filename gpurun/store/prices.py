"""SHORTEN (protocol 3): what a box costs has risen, by the hour or by what it moves, so its timer
comes nearer, never later.  A price over the run's cap ends it now (W10).

The keeper's timer is in force at once, in the transaction that writes the price down; the guards
beside it are found to hold an older one, and are armed again by whoever tends them.
"""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from sqlmodel import Session

from gpurun.budget import Deadlines, ceiling_usd, paid_until
from gpurun.clock import Clock, after
from gpurun.model import SETTLED, Timer, TimerState
from gpurun.provider import Traits
from gpurun.store.database import Database
from gpurun.store.holds import add_hold, held_for_traffic
from gpurun.store.ledger import add_booking, add_reserve, committed, release_reservation
from gpurun.store.marks import max_usd_of, of_budget
from gpurun.store.periods import PeriodCap, rooms
from gpurun.store.rows import timer_of
from gpurun.store.tables import EventRow, InstanceRow, RunRow
from gpurun.store.timers import in_force, is_being_moved, replace_at_once
from gpurun.timers import ends_in_s, fires_in_s, timer_for

ZERO = Decimal(0)
PRICE = "price"  # the kind of a timer that ends what became too dear, and the event that says why


class Prices:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def risen(
        self, label: str, usd_per_hour: Decimal, traits: Traits, caps: Sequence[PeriodCap]
    ) -> Timer | None:
        """A box that costs more from its last booking on; its timer, if it had to come nearer or
        was about to be moved later.

        What it may still cost is reserved by the new price, within its run's money and the caps.
        """
        with self._database.write() as session:
            box = session.get(InstanceRow, label)
            if box is None or usd_per_hour <= box.usd_per_hour:
                return None
            said = f"${box.usd_per_hour}/h before, now ${usd_per_hour}/h"
            self._event(session, box, "dearer", said)
            most = of_budget(session.get_one(RunRow, box.run_id), "max_usd_per_hour")
            over = most is not None and usd_per_hour > most
            if over:
                said = f"its box cost {said}, which is over budget.max_usd_per_hour ${most}"
                self._event(session, box, PRICE, said)
            times = usd_per_hour / box.usd_per_hour if box.usd_per_hour else None
            box.usd_per_hour = usd_per_hour
            session.add(box)
            return self._follow(session, box, times, traits, caps, ends_now=over)

    def moved(
        self, label: str, traffic_usd: Decimal, traits: Traits, caps: Sequence[PeriodCap]
    ) -> Timer | None:
        """A box whose traffic has cost more than was held for it; its timer, if it had to come
        nearer.

        `traffic_usd` is all that its provider has counted since it was made.
        """
        with self._database.write() as session:
            box = session.get(InstanceRow, label)
            if box is None or box.state in SETTLED:
                return None
            more = traffic_usd - held_for_traffic(session, box)
            if more <= 0:
                return None
            add_hold(session, box.run_id, label, "traffic", more, self._clock)
            said = f"${traffic_usd:.2f} of it so far, ${more:.2f} more than was held"
            self._event(session, box, "traffic", said)
            return self._follow(session, box, Decimal(1), traits, caps)

    def _follow(
        self,
        session: Session,
        box: InstanceRow,
        times: Decimal | None,
        traits: Traits,
        caps: Sequence[PeriodCap],
        *,
        ends_now: bool = False,
    ) -> Timer | None:
        """`times` as much an hour as before; None: nobody can tell."""
        run, old = session.get(RunRow, box.run_id), in_force(session, box.label)
        if run is None or box.ending is not None:
            return None
        add_booking(session, box, run.phase, self._clock)
        session.flush()
        left_usd = left_of(session, run, box.label, caps)
        if left_usd is None or old is None or old.state != TimerState.IN_FORCE:
            return None  # it is ending, or its row is damaged
        timer, now = timer_of(old), self._clock.now()
        fires_at = after(now, fires_in_s(timer, self._clock))
        ends_at = after(now, ends_in_s(timer, self._clock))
        paid_at = max(now, paid_until(now, left_usd, box.usd_per_hour, traits))
        grace = max(timedelta(0), ends_at - fires_at)
        kind = PRICE if ends_now else timer.kind
        nearer = ends_now or paid_at < ends_at
        moved = None
        if nearer:
            ends_at = min(ends_at, paid_at)
            if ends_now:
                ends_at = min(ends_at, now + grace)
            fires_at = max(now, min(fires_at, ends_at - grace))
            why = "its price ends it" if ends_now else "its money now ends"
            self._event(session, box, "shortened", f"{why} at {ends_at:%H:%M:%S} UTC")
        if nearer or is_being_moved(session, old):  # by the old price
            moved = timer_for(box.label, 0, kind, fires_at, ends_at, self._clock)
            moved = replace_at_once(session, old, moved)
        box.ceiling_at = min(box.ceiling_at, paid_at)
        session.add(box)
        ends = Deadlines(fires_at, ends_at, box.ceiling_at)
        needs = ceiling_usd(box.usd_per_hour, now, ends, traits)
        held = release_reservation(session, box.run_id, box.label, self._clock)
        if kind == "setup" and times is not None:  # the training is reserved with it
            needs = max(needs, held * times)
        usd = min(needs, max(left_usd, ZERO))
        add_reserve(session, box.run_id, box.label, usd, self._clock)
        return moved

    def _event(self, session: Session, box: InstanceRow, what: str, detail: str) -> None:
        at = self._clock.now()
        session.add(
            EventRow(
                at=at, run_id=box.run_id, label=box.label, who="store", what=what, detail=detail
            )
        )


def left_of(session: Session, run: RunRow, label: str, caps: Sequence[PeriodCap]) -> Decimal | None:
    """What a box may cost from now on; None where nobody can tell."""
    max_usd = max_usd_of(run)
    if max_usd is None:
        return None
    of_all = [room.left_usd for room in rooms(session, caps, label)]
    return min([max_usd - committed(session, run.id, label), *of_all])
