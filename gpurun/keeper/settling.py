"""What a box has truly cost: asked of its provider once it is gone, and booked.

Providers say it late: one minutes after the end, another when the day (UTC) is over, of each day by
itself.  So nobody is believed before all of it can be there; and what was booked is asked for again
for some days, because it may have grown.  Until then the ledger holds what may still be billed.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from gpurun.clock import Clock, SystemClock
from gpurun.errors import GpurunError, ProviderError
from gpurun.places import Places
from gpurun.provider import Provisioner, ReportsCost
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.ledger import UNBILLED, Bill
from gpurun.wiring import provisioner

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 30.0
LATE_S = 600.0  # a charge is complete this long after billing has ended
ASK_EVERY_S = 1800.0
ASK_AGAIN_EVERY_S = 6 * 3600.0  # of what is settled
GIVES_UP_AFTER = timedelta(days=4)
REMEMBERED = timedelta(days=30)
REPORT_WITHIN_S = 5.0


class Settling:
    """`step` is called each tick and never waits."""

    def __init__(
        self, cloud_of: Callable[[str], Provisioner], clock: Clock, journal: Journal
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._journal = journal
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="settle")
        self._looked_s = float("-inf")
        self._looking = False
        self._asking: set[str] = set()  # providers
        self._silent: set[str] = set()  # providers that never say what they charged
        self._held: dict[str, Decimal | None] = {}  # label: at which rate
        self._asked_s: dict[str, float] = {}

    def working(self) -> bool:
        """Whether a provider is being asked right now."""
        return self._looking or bool(self._asking)

    def step(self) -> None:
        if self._looking or self._clock.boot_s() - self._looked_s < LOOK_EVERY_S:
            return
        self._looking, self._looked_s = True, self._clock.boot_s()
        self._pool.submit(self._look)

    def _look(self) -> None:
        try:
            for attempt in self._journal.attempts.live():
                self._hold(attempt.label, attempt.provider, attempt.usd_per_hour)
            due: dict[str, list[Bill]] = {}
            for bill in self._journal.ledger.bills(self._since(), but=self._silent):
                if bill.settled_at is None and bill.label not in self._held:
                    self._hold(bill.label, bill.provider, None)
                if self._is_due(bill):
                    due.setdefault(bill.provider, []).append(bill)
            for name in due.keys() - self._asking:
                self._asking.add(name)
                self._pool.submit(self._ask, name, due[name])
        except GpurunError as error:
            log.error("what is not settled cannot be told: %s", error)
        except Exception:  # the keeper lives; it looks again
            log.exception("looking for what is not settled failed")
        finally:
            self._looking = False

    def _since(self) -> datetime:
        return self._clock.now() - REMEMBERED

    def _hold(self, label: str, provider: str, usd_per_hour: Decimal | None) -> None:
        """The tail, in case that whoever rented it could not write that down."""
        if label in self._held and self._held[label] == usd_per_hour:
            return
        with contextlib.suppress(GpurunError):  # it cannot be asked now: at the next look
            tail_s = self._cloud_of(provider).traits.tail_s
            if tail_s:
                self._journal.ledger.hold(label, tail_s)
            self._held[label] = usd_per_hour

    def _is_due(self, bill: Bill) -> bool:
        if bill.settled_at is None:
            over, every_s = bill.given_up, ASK_EVERY_S
        else:
            over = self._clock.now() - bill.gone_at > GIVES_UP_AFTER
            every_s = ASK_AGAIN_EVERY_S
        asked_s = self._asked_s.get(bill.label, float("-inf"))
        return not over and self._clock.boot_s() - asked_s >= every_s

    def _ask(self, name: str, bills: Sequence[Bill]) -> None:
        try:
            for bill in bills:
                self._ask_for(bill)
        finally:
            self._asking.discard(name)

    def _ask_for(self, bill: Bill) -> None:
        now_s = self._clock.boot_s()
        try:
            cloud = self._cloud_of(bill.provider)
            if not isinstance(cloud, ReportsCost):
                self._silent.add(bill.provider)
                return
            if self._clock.now() < asked_from(bill, cloud.traits.tail_s):
                return
            self._asked_s[bill.label] = now_s
            if not settle(bill, cloud, self._journal):
                self._give_up_on(bill)
        except GpurunError as error:
            self._asked_s[bill.label] = now_s
            log.error("what %s has cost is not known: %s", bill.label, error)
        except Exception:  # one bill that cannot be read keeps no other from being settled
            self._asked_s[bill.label] = now_s
            log.exception("asking what %s has cost failed", bill.label)

    def _give_up_on(self, bill: Bill) -> None:
        """Its silence has lasted too long; an error would not be one."""
        if bill.settled_at is not None or self._clock.now() - bill.gone_at <= GIVES_UP_AFTER:
            return
        why = (
            f"{bill.provider} has not said within {GIVES_UP_AFTER.days} days what it charged: "
            "what is shown is what may have accrued. See the bill in its console"
        )
        log.error("%s: %s", bill.label, why)
        self._journal.runs.event(bill.run_id, UNBILLED, why, bill.label)


def asked_from(bill: Bill, tail_s: float) -> datetime:
    """Not before all of its charge can be there.

    Of a life on two days the first one's charge is there a day earlier, and would pass for all.
    """
    ended_at = bill.gone_at + timedelta(seconds=tail_s)
    if bill.sent_at.date() != ended_at.date():
        ended_at = datetime.combine(ended_at.date() + timedelta(days=1), time(), UTC)
    return ended_at + timedelta(seconds=LATE_S)


def settle(bill: Bill, cloud: Provisioner, journal: Journal) -> bool:
    """Ask, and book what the provider says; False while it says nothing.

    ProviderError for the key of another account: that one's charges are no evidence.
    """
    if not isinstance(cloud, ReportsCost):
        return False
    account = cloud.account()
    if account != bill.account_id:
        raise ProviderError(
            f"{bill.label} was rented by account {bill.account_id} of {bill.provider}, and the "
            f"key is that of {account}: it is settled once the key is the other one again"
        )
    charged_usd = cloud.billed_usd(bill.instance_id)
    if charged_usd is None:
        return False
    if journal.ledger.settle(bill.label, charged_usd):
        said = f"{bill.provider} has charged ${charged_usd:.4f}"
        journal.runs.event(bill.run_id, "settled", said, bill.label)
        log.info("%s: %s", bill.label, said)
    return True


def settle_run(run_id: str, settings: Settings, within_s: float = REPORT_WITHIN_S) -> None:
    """Without a keeper: ask once for what this run's boxes have cost.

    It takes `within_s` at most, and never fails: what is not settled is shown as accrued.
    """
    asking = threading.Thread(target=_settle_run, args=(run_id, settings), daemon=True)
    asking.start()
    asking.join(within_s)


def _settle_run(run_id: str, settings: Settings) -> None:
    clock = SystemClock()
    journal = Journal(Places(settings.state_dir).database, clock)
    try:
        journal.database.require_current()
        for bill in journal.ledger.bills(clock.now() - REMEMBERED):
            if bill.run_id == run_id and bill.settled_at is None:
                cloud = provisioner(bill.provider, settings, clock)
                if clock.now() >= asked_from(bill, cloud.traits.tail_s):
                    settle(bill, cloud, journal)
    except GpurunError as error:
        log.info("%s is not settled: %s", run_id, error)
    finally:
        journal.close()
