"""Rows to nouns: the dataclasses of `gpurun.model`, field by field.

What is read of every run at every tick is read as plain columns: rows of the ORM cost five times
as much.
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from sqlmodel import SQLModel

from gpurun.model import Attempt, AttemptState, Ending, Run, RunState, Timer
from gpurun.store.tables import BadCell, InstanceRow, RunRow, TimerRow

NAMES: dict[type, tuple[str, ...]] = {  # asked for each row, a hundred times a second
    noun: tuple(field.name for field in fields(noun)) for noun in (Run, Attempt, Timer)
}
T = TypeVar("T", Run, Attempt, Timer)
Word = TypeVar("Word", bound=StrEnum)


def _copy(noun: type[T], row: object, **changed: Any) -> T:
    values = {name: getattr(row, name) for name in NAMES[noun]}
    return noun(**(values | changed))


def _ending(text: str | None) -> Ending | None:
    return None if text is None else _word(Ending, text)


def _word(kind: type[Word], text: str) -> Word:
    try:
        return kind(text)
    except ValueError as error:
        raise BadCell(str(error)) from error


def run_of(row: RunRow) -> Run:
    return _copy(Run, row, state=_word(RunState, row.state), ending=_ending(row.ending))


def attempt_of(row: InstanceRow) -> Attempt:
    return _copy(Attempt, row, state=_word(AttemptState, row.state), ending=_ending(row.ending))


def timer_of(row: TimerRow) -> Timer:
    return _copy(Timer, row)


def columns(noun: type, table: type[SQLModel]) -> list[Any]:
    """Those of a noun, in the order of its fields."""
    return [getattr(table, name) for name in NAMES[noun]]


def run_from(values: Sequence[Any]) -> Run:
    return Run(*_typed(Run, values, RunState))


def attempt_from(values: Sequence[Any]) -> Attempt:
    return Attempt(*_typed(Attempt, values, AttemptState))


def timer_from(values: Sequence[Any]) -> Timer:
    return Timer(*values)


def _typed(
    noun: type, values: Sequence[Any], state: type[AttemptState] | type[RunState]
) -> list[Any]:
    found, names = list(values), NAMES[noun]
    at, ending = names.index("state"), names.index("ending")
    found[at], found[ending] = _word(state, found[at]), _ending(found[ending])
    return found
