"""What one rented thing has cost so far, to the microsecond, in Decimal dollars.

Vast bills GPU time and storage apart and network traffic by the byte; Prime bills one rate per
state.  Both are items with dated rates, plus single charges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from tests.clouds.clock import seconds

HOUR_S = 3600
ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Span:
    """An item billed at one rate from one instant to another."""

    item: str
    since: datetime
    until: datetime
    usd_per_hour: Decimal

    @property
    def usd(self) -> Decimal:
        return self.usd_per_hour * seconds(self.until - self.since) / HOUR_S

    @property
    def hours(self) -> Decimal:
        return seconds(self.until - self.since) / HOUR_S


@dataclass(slots=True)
class Meter:
    """Runs on by itself: only changes of a rate are told to it."""

    closed: list[Span] = field(default_factory=list)
    charged: dict[str, Decimal] = field(default_factory=dict)
    _running: dict[str, tuple[datetime, Decimal]] = field(default_factory=dict)

    def bill(self, at: datetime, usd_per_hour: Mapping[str, Decimal]) -> None:
        """From now on these items, at these rates, and no other."""
        self.closed += [span for span in self._open(at) if span.until > span.since]
        self._running = {item: (at, rate) for item, rate in usd_per_hour.items() if rate}

    def charge(self, item: str, usd: Decimal) -> None:
        """Once, beside the rates."""
        self.charged[item] = self.charged.get(item, ZERO) + usd

    def spans(self, now: datetime) -> list[Span]:
        return [*self.closed, *self._open(now)]

    def items(self, now: datetime) -> dict[str, Decimal]:
        """Dollars so far by item."""
        total = dict(self.charged)
        for span in self.spans(now):
            total[span.item] = total.get(span.item, ZERO) + span.usd
        return total

    def usd(self, now: datetime) -> Decimal:
        return sum(self.items(now).values(), ZERO)

    @property
    def usd_per_hour(self) -> Decimal:
        """What it bills at this moment, traffic left out."""
        return sum((rate for _, rate in self._running.values()), ZERO)

    def _open(self, now: datetime) -> list[Span]:
        return [
            Span(item, since, max(now, since), rate)
            for item, (since, rate) in self._running.items()
        ]
