"""The keeper's own lists: one account at a time, complete, compared with the journal by label."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from gpurun.blackbox import BlackBox
from gpurun.budget import CENT
from gpurun.clock import ANSWERS_APART_S, Clock
from gpurun.engine.limits import period_caps
from gpurun.errors import GpurunError, ProviderError, ProviderUnreachable
from gpurun.holdings import Orphan, Whose, document, known_by, orphans_among
from gpurun.identity import age, twins_among
from gpurun.keeper.alone import alone
from gpurun.keeper.charges import Charge, come_back
from gpurun.model import SETTLED, Attempt, AttemptState, Ending, Instance, InstanceState, Timer
from gpurun.outcome import conclude
from gpurun.proof import Evidence, Lookup, listing, of_death
from gpurun.provider import Prepaid, Provisioner, Traits
from gpurun.settings import Settings
from gpurun.store import Damaged, Journal, StoreError
from gpurun.store.periods import PeriodCap
from gpurun.timers import entry_of, evidence_of

log = logging.getLogger("gpurun.keeper")

Costs = Callable[[str, Decimal, Traits, Sequence[PeriodCap]], Timer | None]
ZERO = Decimal(0)

LIST_EVERY_S = 30.0
WALLET_EVERY_S = 300.0
WATCHED_S = 86400.0  # a label that is gone, or was never seen, is looked for this long
REMEMBERED_FOR_S = 10.0
KNOWN_FOR_S = 120.0  # that an id is still its own, without asking for it once more
AGAIN_AFTER_S = 5.0  # a list that failed: a driver may wait for it before it rents


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last complete list."""

    account: str
    began_s: float
    by_id: dict[str, Instance]


@dataclass(slots=True)
class _Provider:
    listed_s: float = float("-inf")
    due_s: float = float("-inf")
    busy: bool = False
    answered: bool = False
    wallet_s: float = float("-inf")
    seen: _Seen | None = None
    missing: dict[str, Evidence] = field(default_factory=dict)


class Lists:
    """`step` is called each tick and never waits."""

    def __init__(
        self,
        cloud_of: Callable[[str], Provisioner],
        clock: Clock,
        journal: Journal,
        blackbox: BlackBox,
        settings: Settings,
    ) -> None:
        self._blackbox = blackbox
        self._settings = settings
        self._cloud_of = cloud_of
        self._clock = clock
        self._journal = journal
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="list")
        self._providers: dict[str, _Provider] = {}
        self._back: SimpleQueue[Charge] = SimpleQueue()
        self._remembered: set[str] = set()
        self._watched_at_s = float("-inf")
        self._traffic: dict[str, Decimal] = {}

    def working(self) -> bool:
        """Whether a list is being read right now."""
        return any(known.busy for known in list(self._providers.values()))

    def step(self, live: Iterable[str], for_time: Collection[str] = ()) -> None:
        """`live` are the providers of live runs; labels that may come back are looked for too.

        Those `for_time` are asked as soon as a second answer tells what time it is.
        """
        now_s = self._clock.boot_s()
        for name in {*live, *self._watched()}:
            known = self._providers.setdefault(name, _Provider())
            for_time_s = known.listed_s + ANSWERS_APART_S if name in for_time else known.due_s
            if not known.busy and now_s >= min(known.due_s, for_time_s):
                known.busy, known.listed_s, known.due_s = True, now_s, now_s + LIST_EVERY_S
                self._pool.submit(self._list, name, known)

    def has_answered(self, name: str) -> bool:
        """Whether it has, whatever it said, since this process began."""
        return name in self._providers and self._providers[name].answered

    def shows(self, name: str, evidence: Evidence) -> bool:
        """Whether the last complete list has this box, and as what it was bought as (K4)."""
        seen = self._providers[name].seen if name in self._providers else None
        if seen is None or self._clock.boot_s() - seen.began_s > KNOWN_FOR_S:
            return False
        row = seen.by_id.get(evidence.instance_id or "")
        return seen.account == evidence.account and row is not None and evidence.is_of(row)

    def back(self) -> list[Charge]:
        """What has come back since the last call, and that no row of the journal will end."""
        found = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._back.get_nowait())
        return found

    def _watched(self) -> set[str]:
        """Asked now and then: it reads every label that there ever was."""
        if self._clock.boot_s() - self._watched_at_s >= REMEMBERED_FOR_S:
            since = self._clock.now() - timedelta(seconds=WATCHED_S)
            try:
                self._remembered = self._journal.attempts.providers_since(since)
                self._watched_at_s = self._clock.boot_s()
            except StoreError:
                return set()
        return self._remembered

    def _list(self, name: str, known: _Provider) -> None:
        account = "?"
        try:
            cloud = self._cloud_of(name)
            account = cloud.account()
            began_s = self._clock.boot_s()
            rows = cloud.instances()
            known.answered = True
            known.seen = _Seen(account, began_s, {row.id: row for row in rows})
            attempts, damaged = self._journal.attempts.legible(name, [row.label for row in rows])
            ours = {row.label: attempts[row.label] for row in rows if row.label in attempts}
            boxes = {label: self._boxes_of(each, account, rows) for label, each in ours.items()}
            for label, each in ours.items():
                if boxes[label] and (each.state is AttemptState.GHOST or each.state in SETTLED):
                    alone(partial(self._end, each, boxes[label]))
            held = self._held_by_blackbox(damaged)
            shown = [row for row in rows if row.label not in held]
            attempts, _ = self._journal.attempts.legible(name, list(ours))
            claims = known_by(self._journal.owner.ensure()[0], attempts.values())
            orphans = orphans_among(shown, account, claims)
            self._journal.keepers.listed(name, account, _documents(orphans, ours))
            for label, attempt in ours.items():
                for row in boxes[label]:
                    alone(partial(self._follow, row, attempt))
            self._absent(cloud, account, began_s, rows, known)
            self._look_into_wallet(cloud, account, known)
        except Damaged as error:  # the provider has answered all the same
            log.error("what %s has listed cannot be taken in: %s", name, error)
        except GpurunError as error:
            if isinstance(error, ProviderError) and not isinstance(error, ProviderUnreachable):
                known.answered = True
            log.error("listing %s failed: %s", name, error)
            known.due_s = self._clock.boot_s() + AGAIN_AFTER_S
            self._journal.keepers.not_listed(name, account, str(error))
        except Exception:
            log.exception("listing %s failed", name)
        finally:
            known.busy = False

    def _look_into_wallet(self, cloud: Provisioner, account: str, known: _Provider) -> None:
        """For `status` alone: nothing rests on it."""
        if not isinstance(cloud, Prepaid) or self._clock.boot_s() - known.wallet_s < WALLET_EVERY_S:
            return
        known.wallet_s = self._clock.boot_s()
        with contextlib.suppress(ProviderError):
            if (usd := cloud.credit_usd()) is not None:
                self._journal.keepers.credit(cloud.name, account, usd)

    def _boxes_of(self, attempt: Attempt, account: str, rows: list[Instance]) -> list[Instance]:
        """Its box, the oldest first if its request has made several; none that bears its label."""
        if attempt.account_id != account:
            return []
        evidence = evidence_of(attempt, self._clock)
        named = [row for row in rows if row.label == attempt.label and evidence.is_of(row)]
        return sorted((row for row in named if row.state is not InstanceState.GONE), key=age)

    def _held_by_blackbox(self, damaged: Mapping[str, bool]) -> set[str]:
        """Labels that may bill, though their rows cannot be read: its timers end them in time."""
        if not damaged:
            return set()
        with contextlib.suppress(OSError):
            return {label for label in self._blackbox.read() if damaged.get(label)}
        return set()

    def _end(self, attempt: Attempt, boxes: list[Instance]) -> None:
        """Listed though it never was, or was gone: ended now, whatever its run has gone on with."""
        label, box = attempt.label, boxes[0]
        why = f"{label} is listed though it is {attempt.state}"
        log.error("%s: ending it", why)
        twins = twins_among(boxes[1:], attempt.sent_at)
        try:
            self._journal.endings.end_attempt(label, Ending.FAILED, why)
            self._journal.attempts.reappeared(label)
            if not twins:  # of several none is its own until all were asked to end, by a round
                attempts, made_at = self._journal.attempts, box.created_at
                if attempts.made(label, box.id, "list", made_at) != box.id:
                    self._back.put(come_back(attempt, box, self._clock))
        except Exception:
            for row in [box, *twins]:
                self._back.put(come_back(attempt, row, self._clock))
            raise
        finally:  # a journal that is locked, or lost before it is gone, keeps no box alive
            if timer := self._journal.timers.of(label):
                made = replace(attempt, instance_id=box.id)
                with contextlib.suppress(OSError):
                    self._blackbox.append(entry_of(made, timer, AttemptState.DELETING.value))

    def _follow(self, row: Instance, attempt: Attempt) -> None:
        rate = row.usd_per_hour if row.state is InstanceState.RUNNING else None
        if rate is not None and rate > attempt.usd_per_hour:
            log.error("%s now costs $%s/h", row.label, rate)
            self._follow_money(row.label, self._journal.prices.risen, rate)
        traffic = (row.traffic_usd or ZERO).quantize(CENT, ROUND_CEILING)
        if traffic > self._traffic.get(row.label, ZERO):  # the journal is asked once a cent
            self._follow_money(row.label, self._journal.prices.moved, traffic)
            self._traffic[row.label] = traffic

    def _follow_money(self, label: str, costs: Costs, usd: Decimal) -> None:
        """SHORTEN: the timer is in force here at once; the other guards are found to lag."""
        provider = self._journal.attempts.get(label).provider
        traits = self._cloud_of(provider).traits
        caps = period_caps(self._settings, provider, self._clock.now())
        if timer := costs(label, usd, traits, caps):
            attempt = self._journal.attempts.get(label)
            log.error("%s: its money now ends at %s UTC", label, f"{timer.ends_at:%H:%M:%S}")
            with contextlib.suppress(OSError):
                self._blackbox.append(entry_of(attempt, timer, attempt.state.value))

    def _absent(
        self,
        cloud: Provisioner,
        account: str,
        began_s: float,
        rows: list[Instance],
        known: _Provider,
    ) -> None:
        """Ours, seen before, in no list now: proven gone it has ended outside gpurun."""
        by_id = {row.id: row for row in rows}
        for attempt in self._journal.attempts.legible(cloud.name, [])[0].values():
            if (
                attempt.account_id != account
                or attempt.state is not AttemptState.SEEN
                or attempt.instance_id is None
            ):
                continue
            before = known.missing.get(attempt.label) or evidence_of(attempt, self._clock)
            listed = by_id.get(attempt.instance_id)
            if listed is not None and before.is_of(listed) and listed.state != InstanceState.GONE:
                known.missing.pop(attempt.label, None)
                continue
            asked_s = self._clock.boot_s()
            row = cloud.instance(attempt.instance_id)
            found = row is not None and before.is_of(row)
            absent = before.plus(listing(account, began_s, []))
            evidence = absent.plus(Lookup(account, asked_s, found))
            known.missing[attempt.label] = evidence
            if of_death(evidence, cloud.traits.proof_gap_s).gone:
                alone(partial(self._ended_outside, attempt, evidence))

    def _ended_outside(self, attempt: Attempt, evidence: Evidence) -> None:
        why = f"{attempt.label} ended outside gpurun"
        self._journal.endings.end_run(attempt.run_id, Ending.FAILED, why, 0.0)
        self._journal.runs.failing(attempt.run_id, why, 5)
        self._journal.attempts.gone(attempt.label, evidence.to_json(), attempt.instance_id)
        self._journal.ledger.book(attempt.label, "destroy")
        conclude(self._journal, attempt.run_id)


def _documents(orphans: list[Orphan], ours: Collection[str]) -> list[dict[str, Any]]:
    """But of those that bear a label of ours whose timer is over: they are being ended."""
    return [
        document(orphan)
        for orphan in orphans
        if orphan.whose is not Whose.OURS or orphan.row.label not in ours
    ]
