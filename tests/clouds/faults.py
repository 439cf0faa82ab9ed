"""What can go wrong in a cloud, by name: the words, and which of them are set now.

Most knobs are conditions: they hold from when they are set until they are cleared, or for the next
`times` requests of an `endpoint`.  The others happen to instances, `after_s` seconds after the knob
was set or the instance came to be, whichever is later, to each instance once; `instance` names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Fault:
    """One knob.  `parameters` are its values when none are given; None: no limit, or all.

    `happens` says from when `after_s` counts for one that happens to instances; "" is a condition.
    """

    name: str
    providers: tuple[str, ...]
    sentence: str
    parameters: tuple[tuple[str, Any], ...] = ()
    happens: Literal["", "made", "running", "gone"] = ""


@dataclass(slots=True)
class Setting:
    """A knob that is set, with its values.  `serial` tells two settings of one knob apart."""

    fault: Fault
    values: dict[str, Any]
    serial: int
    hits: int = 0
    met: set[str] = field(default_factory=set)  # whom or what it has happened to

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def concerns(self, instance_id: str) -> bool:
        wanted = self.values.get("instance")
        return wanted is None or str(wanted) == instance_id


class Knobs:
    """The knobs of one cloud.  Setting one again replaces its values."""

    def __init__(self, provider: str, faults: tuple[Fault, ...]) -> None:
        self.faults = {fault.name: fault for fault in faults if provider in fault.providers}
        self._provider = provider
        self._set: dict[str, Setting] = {}
        self._serial = 0

    def set(self, name: str, values: Mapping[str, Any]) -> Setting:
        fault = self.faults.get(name)
        if fault is None:
            known = ", ".join(sorted(self.faults))
            raise ValueError(f"{self._provider} has no fault {name!r}: it has {known}")
        defaults = dict(fault.parameters)
        if unknown := set(values) - set(defaults):
            raise ValueError(f"{name} has no {sorted(unknown)}: it has {sorted(defaults)}")
        self._serial += 1
        self._set[name] = Setting(fault, defaults | dict(values), self._serial)
        return self._set[name]

    def clear(self, name: str | None = None) -> list[Setting]:
        """Put one knob back, or all; return those that had been set."""
        names = [name] if name else list(self._set)
        return [self._set.pop(each) for each in names if each in self._set]

    def get(self, name: str) -> Setting | None:
        """The setting, if this knob is set."""
        return self._set.get(name)

    def hit(self, name: str, endpoint: str = "", instance_id: str = "") -> Setting | None:
        """The setting, if it concerns this request; counted, and cleared after its last time."""
        setting = self.of(name, endpoint, instance_id)
        if setting is not None:
            setting.hits += 1
            times = setting.values.get("times")
            if times is not None and setting.hits >= times:
                del self._set[name]
        return setting

    def of(self, name: str, endpoint: str = "", instance_id: str = "") -> Setting | None:
        """The setting, if it concerns this request; not counted."""
        setting = self._set.get(name)
        if setting is None:
            return None
        if setting.values.get("endpoint") not in (None, endpoint):
            return None
        return setting if setting.concerns(instance_id) else None

    def active(self) -> list[Setting]:
        return list(self._set.values())
