"""What both clouds are: instances that live in time, each with a meter and a real machine.

Facts that shape it: billing does not end with DELETE (a tail of up to 5.3 minutes was seen); what
an account holds is not what a list shows (protocol 9); credit is the one hard cap, and both
providers act by themselves when it is gone.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.clouds.boxes import Box, Boxes, Spec
from tests.clouds.clock import Clock, Event, Timeline
from tests.clouds.faults import Knobs, Setting
from tests.clouds.knobs import FAULTS
from tests.clouds.meter import HOUR_S, ZERO, Meter

BOOT_S = 0.6  # from create to running, when no knob says otherwise


@dataclass(slots=True, kw_only=True)
class Rental:
    """Something rented, in any state, for ever: what is gone stays on the meter."""

    id: str
    label: str
    spec: Spec
    made_at: datetime
    state: str
    meter: Meter = field(default_factory=Meter)
    alive: bool = True  # it exists, and bills or may bill again
    foreign: bool = False  # not bought through the API: somebody else's, without a machine
    ran: bool = False
    gone_at: datetime | None = None
    hidden_until: datetime | None = None
    word: str | None = None  # what its row says instead of its state
    price_factor: Decimal = Decimal(1)
    traffic_seen: tuple[int, int] = (0, 0)
    machine: Future[Box] | None = None
    plans: list[Event] = field(default_factory=list)

    @property
    def box(self) -> Box | None:
        """Its machine, waited for; None if it has none (yet, or any more)."""
        return self.machine.result() if self.machine is not None else None

    def forget_plans(self) -> None:
        for event in self.plans:
            event.cancel()
        self.plans.clear()


@dataclass(frozen=True, slots=True)
class Line:
    """One instance on the meter."""

    id: str
    label: str
    state: str
    billed_usd: Decimal
    alive: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """The meter of an account."""

    instances: tuple[Line, ...]
    billed_usd: Decimal
    alive: int


class World(ABC):
    """One account at one provider.  Whoever calls in holds `lock`."""

    provider: str
    api_key: str
    gone_state: str

    def __init__(self, clock: Clock, boxes: Boxes, credit_usd: Decimal) -> None:
        self.lock = threading.RLock()
        self.timeline = Timeline(clock)
        self.knobs = Knobs(self.provider, FAULTS)
        self.boxes = boxes
        self.deposited_usd = credit_usd
        self.rentals: list[Any] = []
        self.api_port = 0
        self.endpoints: frozenset[str] = frozenset()  # the words that knobs have for them
        self.asked: Counter[str] = Counter()  # requests that arrived, by those words
        self.broken: BaseException | None = None
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="machines")
        self._exhaustion: Event | None = None
        self._counted_lists: dict[str, int] = {}

    # Time.

    @property
    def now(self) -> datetime:
        return self.timeline.now

    def settle(self) -> None:
        """Catch up with the clock; a machine that could not be made breaks the cloud for good."""
        if self.broken is not None:
            raise RuntimeError("this cloud broke earlier") from self.broken
        try:
            self.timeline.settle()
        except BaseException as error:
            self.broken = error
            raise

    # Knobs.

    def set_fault(self, name: str, values: Mapping[str, Any]) -> None:
        endpoint = values.get("endpoint")
        if endpoint is not None and endpoint not in self.endpoints:
            known = ", ".join(sorted(self.endpoints))
            raise ValueError(f"{self.provider} has no endpoint {endpoint!r}: it has {known}")
        setting = self.knobs.set(name, values)
        for rental in list(self.rentals):
            self._plan(rental, setting, since=self.now)
        self.on_set(setting)

    def clear_fault(self, name: str | None) -> None:
        for setting in self.knobs.clear(name):
            self.on_clear(setting)

    @abstractmethod
    def on_set(self, setting: Setting) -> None:
        """A condition that acts at once when it is set."""

    @abstractmethod
    def on_clear(self, setting: Setting) -> None:
        """What ends with a knob."""

    def _plan_happenings(self, rental: Rental, since: str) -> None:
        for setting in self.knobs.active():
            if setting.fault.happens == since:
                self._plan(rental, setting, since=self.now)

    def _plan(self, rental: Rental, setting: Setting, since: datetime) -> None:
        """Let an instance meet a knob, once, when the time comes and if the knob is still set."""
        happens = setting.fault.happens
        ready = {"made": rental.alive, "running": rental.alive and rental.ran, "gone": False}
        if happens == "gone":
            ready["gone"] = rental.gone_at is not None
        if not ready.get(happens, False) or rental.foreign or not setting.concerns(rental.id):
            return
        if not self.is_instance(rental):
            return
        mark = f"{rental.id} {rental.made_at}"

        def meet() -> None:
            if self.knobs.get(setting.fault.name) is setting and mark not in setting.met:
                setting.met.add(mark)
                if rental.alive or happens == "gone":
                    self.happenings[setting.fault.name](rental, setting)

        delay_s = setting["after_s"]
        self.timeline.at(since + timedelta(seconds=delay_s), meet) if delay_s else meet()

    # Life.

    def add(self, rental: Rental) -> None:
        """Something was rented, and started; now what is set can happen to it."""
        self.rentals.append(rental)
        self._plan_happenings(rental, "made")

    def make_machine(self, rental: Rental) -> None:
        """Begin to make its machine; `Rental.box` waits for it."""
        rental.machine = self._workers.submit(self.boxes.make, rental.spec, self.api_port)

    def came_to_run(self, rental: Rental) -> None:
        if not rental.ran:
            rental.ran = True
            self._plan_happenings(rental, "running")

    def bill(self, rental: Rental, usd_per_hour: Mapping[str, Decimal]) -> None:
        """From now on it bills like this."""
        rental.meter.bill(self.now, usd_per_hour)
        self._plan_exhaustion()

    def end(self, rental: Rental) -> None:
        """It is gone; the bill may run on for a tail."""
        self.read_traffic(rental)
        rental.forget_plans()
        rental.alive = False
        rental.gone_at = self.now
        rental.state = self.gone_state
        self.drop_machine(rental)
        tail = self.knobs.get("tail_s")
        if tail is None:
            self.bill(rental, {})
        else:
            self.timeline.after(tail["seconds"], lambda: self.bill(rental, {}))
        self._plan_happenings(rental, "gone")

    def drop_machine(self, rental: Rental) -> None:
        if rental.machine is not None:
            rental.machine.result().destroy()
            rental.machine = None

    @abstractmethod
    def read_traffic(self, rental: Rental) -> None:
        """Charge what went over the network since the last time, where that is charged."""

    def living(self) -> list[Any]:
        return [rental for rental in self.rentals if rental.alive]

    def find(self, instance_id: str) -> Any | None:
        """The living instance with this id; the newest, where an id was given twice."""
        found = [rental for rental in self.living() if rental.id == str(instance_id)]
        return found[-1] if found else None

    # What happens to instances by itself.

    def is_instance(self, rental: Any) -> bool:
        """Whether knobs can happen to it: a disk alone is none."""
        return True

    @property
    def happenings(self) -> dict[str, Callable[[Any, Setting], None]]:
        return {
            "price_up": self._price_up,
            "status_word": self._status_word,
            "relabel": self._relabel,
            "console_destroy": lambda rental, _: self.destroy(rental),
            "container_restart": lambda rental, _: self.restart(rental),
            "host_reboot": self._host_reboot,
            "twin_label": self._twin,
            "id_reuse": self._id_reuse,
        }

    @abstractmethod
    def rebill(self, rental: Any) -> None:
        """Its state or its price has changed: bill what it costs now."""

    @abstractmethod
    def destroy(self, rental: Any) -> None: ...

    @abstractmethod
    def run(self, rental: Any) -> None:
        """Its container starts, on a machine that is up."""

    @abstractmethod
    def running(self, rental: Any) -> bool: ...

    @abstractmethod
    def foreign_id(self) -> str: ...

    @abstractmethod
    def set_running(self, rental: Any) -> None:
        """Show and bill it as running, whatever it was."""

    def restart(self, rental: Rental) -> None:
        """Stop and start the container; the kernel goes on."""
        if self.running(rental) and rental.box is not None:
            rental.box.restart()
            self.run(rental)

    def _host_reboot(self, rental: Rental, setting: Setting) -> None:
        if self.running(rental) and rental.box is not None:
            rental.box.reboot()
            self.run(rental)

    def _price_up(self, rental: Rental, setting: Setting) -> None:
        rental.price_factor = Decimal(str(setting["factor"]))
        self.rebill(rental)

    def _status_word(self, rental: Rental, setting: Setting) -> None:
        rental.word = setting["word"]
        self.rebill(rental)

    def _relabel(self, rental: Rental, setting: Setting) -> None:
        rental.label = setting["label"]

    def put_foreign(self, label: str) -> None:
        """Somebody else's box, made a minute before the first of ours."""
        first = self.rentals[0]
        self._add_foreign(first, self.foreign_id(), label, first.made_at - timedelta(minutes=1))

    def _twin(self, rental: Rental, setting: Setting) -> None:
        earlier = self.now - timedelta(seconds=setting["seconds_before"])
        self._add_foreign(rental, self.foreign_id(), rental.label, earlier)

    def _id_reuse(self, rental: Rental, setting: Setting) -> None:
        self._add_foreign(rental, rental.id, setting["label"], self.now)

    def _add_foreign(self, like: Rental, number: str, label: str, made_at: datetime) -> None:
        """Somebody else's box in the account: it has a row and a bill, but no machine."""
        made = replace(
            like,
            id=number,
            label=label,
            made_at=made_at,
            meter=Meter(),
            foreign=True,
            alive=True,
            gone_at=None,
            machine=None,
            plans=[],
            word=None,
        )
        self.rentals.append(made)
        self.set_running(made)

    # What the account sees.

    def hidden(self, rental: Rental) -> bool:
        """Whether DELETE has only hidden it."""
        return rental.hidden_until is not None and self.now < rental.hidden_until

    def visible(self, rentals: Iterable[Any]) -> list[Any]:
        """What a list shows of them, with every lie that is set."""
        if self.knobs.hit("list_empty"):
            return []
        lag = self.knobs.get("list_lag_s")
        listed = [
            rental
            for rental in rentals
            if not self.hidden(rental)
            and not (lag and self.now < rental.made_at + timedelta(seconds=lag["seconds"]))
            and not self._flickers(rental)
        ]
        return [*listed, listed[0]] if listed and self.knobs.get("list_twins") else listed

    def _flickers(self, rental: Rental) -> bool:
        if self.knobs.of("flicker", instance_id=rental.id) is None:
            return False
        count = self._counted_lists.get(rental.id, 0)
        self._counted_lists[rental.id] = count + 1
        return count % 2 == 0

    def hide(self, rental: Rental) -> bool:
        """Whether a DELETE only hides it, or does nothing at all though it answers success."""
        if self.knobs.hit("delete_lies", instance_id=rental.id):
            return True
        setting = self.knobs.hit("reappear_after_s", instance_id=rental.id)
        if setting is not None:
            rental.hidden_until = self.now + timedelta(seconds=setting["seconds"])
        return setting is not None

    # Money.

    @property
    def credit_usd(self) -> Decimal:
        if self.knobs.get("credit_zero"):
            return ZERO
        return self.deposited_usd - self._usd(self.paid_by_credit())

    def paid_by_credit(self) -> list[Any]:
        """What is paid from the account's own credit: everything, but a team's."""
        return self.rentals

    def _usd(self, rentals: Iterable[Any]) -> Decimal:
        return sum((rental.meter.usd(self.now) for rental in rentals), ZERO)

    @abstractmethod
    def out_of_credit(self) -> None:
        """What the provider does to the instances when the credit is gone."""

    def _plan_exhaustion(self) -> None:
        if self._exhaustion is not None:
            self._exhaustion.cancel()
            self._exhaustion = None
        rate = sum((rental.meter.usd_per_hour for rental in self.paid_by_credit()), ZERO)
        left_usd = self.deposited_usd - self._usd(self.paid_by_credit())
        if rate > 0 and left_usd > 0:
            left_s = float(left_usd / rate) * HOUR_S
            if left_s < 366 * 24 * HOUR_S:
                self._exhaustion = self.timeline.after(left_s, self.out_of_credit)

    def reading(self) -> Reading:
        """The meter now."""
        for rental in self.living():
            self.read_traffic(rental)
        lines = tuple(
            Line(each.id, each.label, each.state, each.meter.usd(self.now), each.alive)
            for each in self.rentals
        )
        alive = sum(line.alive for line in lines)
        return Reading(lines, sum((line.billed_usd for line in lines), ZERO), alive)

    # The end.

    def close(self) -> None:
        """Destroy every machine."""
        for rental in self.rentals:
            rental.forget_plans()
        self._workers.shutdown(wait=True, cancel_futures=True)
        for rental in self.rentals:
            if rental.machine is not None and not rental.machine.cancelled():
                if rental.machine.exception() is None:
                    rental.machine.result().destroy()
                rental.machine = None
