"""Rows to nouns: the dataclasses of `gpurun.model`, field by field."""

from dataclasses import fields
from typing import Any, TypeVar

from gpurun.model import Attempt, AttemptState, Ending, Run, RunState, Timer
from gpurun.store.tables import InstanceRow, RunRow, TimerRow

NAMES: dict[type, tuple[str, ...]] = {  # asked for each row, a hundred times a second
    noun: tuple(field.name for field in fields(noun)) for noun in (Run, Attempt, Timer)
}
T = TypeVar("T", Run, Attempt, Timer)


def _copy(noun: type[T], row: object, **changed: Any) -> T:
    values = {name: getattr(row, name) for name in NAMES[noun]}
    return noun(**(values | changed))


def _ending(text: str | None) -> Ending | None:
    return None if text is None else Ending(text)


def run_of(row: RunRow) -> Run:
    return _copy(Run, row, state=RunState(row.state), ending=_ending(row.ending))


def attempt_of(row: InstanceRow) -> Attempt:
    return _copy(Attempt, row, state=AttemptState(row.state), ending=_ending(row.ending))


def timer_of(row: TimerRow) -> Timer:
    return _copy(Timer, row)
