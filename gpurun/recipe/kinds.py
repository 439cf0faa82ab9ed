"""The kinds of value a recipe holds: money, minutes, globs, names.

Each refuses what makes no sense, in the form "is X: what to do"; the key and the line are put
before it by explain.py.  A number of the YAML text arrives as int or Decimal, never as float.
"""

import re
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

NINETY_DAYS = Decimal(90 * 24 * 60)
MOST_USD = Decimal(1_000_000)

_CLOCKLIKE = re.compile(r"\d+:\d\d(:\d\d)?|\d+(\.\d+)?\s*(s|m|min|h|d)[a-z]*", re.I)
_GIVES_AWAY = re.compile(r"(api_?key|_key|token|secret|password)$", re.I)


def refuse(what: str) -> NoReturn:
    """Stop validation with the rest of a sentence that begins with the key."""
    raise PydanticCustomError("recipe", "{what}", {"what": what})


def shown(value: object) -> str:
    """A value as it may stand in a one-line message."""
    text = " ".join(str(value).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: Any, info: ValidationInfo) -> Any:
    if info.mode == "json" and isinstance(value, str):  # the journal keeps money as text
        return Decimal(value)
    if isinstance(value, Decimal) and not value.is_finite():
        refuse(f"is {value}: write a plain number, such as 10.00")
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    if value is None:
        refuse("is empty: give it a number, or delete the line")
    if isinstance(value, str) and _CLOCKLIKE.fullmatch(value):
        refuse(f"is {shown(value)}, which is text: write plain minutes, such as 90 or 1.5")
    if isinstance(value, str):
        refuse(f"is {shown(value)!r}, which is text: write a plain number, such as 10.00")
    if isinstance(value, bool):
        refuse(f"is {str(value).lower()}: write a plain number, such as 10.00")
    refuse(f"is {_shape(value)}: write a plain number, such as 10.00")


def _usd(value: Decimal) -> Decimal:
    if value <= 0:
        refuse(f"is {value}: a budget is more than 0 dollars")
    if value > MOST_USD:
        refuse(f"is {value}: a budget is at most {MOST_USD} dollars")
    return value


def _minutes(value: Decimal) -> Decimal:
    if value <= 0:
        refuse(f"is {value}: a duration is more than 0 minutes")
    return _short_enough(value)


def _short_enough(value: Decimal) -> Decimal:
    if value > NINETY_DAYS:
        refuse(f"is {value}: a duration is at most {NINETY_DAYS} minutes (90 days)")
    return value


def _minutes_or_none(value: Decimal) -> Decimal:
    if value < 0:
        refuse(f"is {value}: give 0 or more minutes")
    return _short_enough(value)


def _at_least_one(value: int) -> int:
    if value < 1:
        refuse(f"is {value}: give 1 or more")
    if value > 1_000_000:
        refuse(f"is {value}: that is more than any box has")
    return value


def _text(value: str) -> str:
    if not value.strip():
        refuse("is empty: give it a value, or delete the line")
    if "\0" in value:
        refuse("holds a NUL character: delete it")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,62}", value):
        refuse(f"is {shown(value)!r}: use small letters, digits, '-', '_' and '.'")
    return value


def _provider(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_-]+", value):
        refuse(f"is {shown(value)!r}: a provider is named with small letters, digits, '-' and '_'")
    return value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        refuse(f"is {shown(value)!r}: a variable is named with letters, digits and '_'")
    if value.upper().startswith("GPURUN_"):
        refuse(f"is {value}: names that begin with GPURUN_ are set by gpurun itself")
    return value


def _inside(value: str) -> str:
    """A path or glob on the box that stays in the run's folder."""
    _text(value)
    if value.startswith(("/", "~")):
        refuse(f"is {shown(value)}, an absolute path: give it from the run's own folder")
    if ".." in PurePosixPath(value).parts:
        refuse(f"is {shown(value)}, which leaves the run's folder: delete the `..`")
    if PurePosixPath(value) == PurePosixPath("."):
        refuse(f"is {shown(value)}, which is everything: name what you want of it")
    if value.startswith("-") or any(letter in value for letter in "\\\n\r"):
        refuse(f"is {shown(value)!r}: no leading '-', no backslash, no line break")
    return value


def _path(value: str) -> str:
    if any(letter in value for letter in "*?["):
        refuse(f"is {shown(value)}: a plain path is wanted here, without * ? [")
    return _inside(value)


def _glob(value: str) -> str:
    _inside(value)
    for part in PurePosixPath(value).parts:
        if "**" in part and part != "**":
            refuse(f"is {shown(value)}, a bad glob: `**` stands alone between slashes")
        if "[" in re.sub(r"\[!?\]?[^\]]*\]", "", part):
            refuse(f"is {shown(value)}, a bad glob: the `[` is never closed")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        refuse(f"is not a regular expression ({error}): mend it")
    return _text(value)


def _env(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        _text(name)
        if text and _GIVES_AWAY.search(name):
            refuse(f"holds {shown(name)}, a secret by its name: list the name under `secrets:`")
        if "\0" in text:
            refuse(f"holds a NUL character in {shown(name)}: delete it")
    return value


def _shape(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return shown(value)


_NUMBER = {"type": "number"}

Money = Annotated[
    Decimal,
    BeforeValidator(_number),
    AfterValidator(_usd),
    WithJsonSchema({**_NUMBER, "exclusiveMinimum": 0, "maximum": int(MOST_USD)}),
]
Minutes = Annotated[
    Decimal,
    BeforeValidator(_number),
    AfterValidator(_minutes),
    WithJsonSchema({**_NUMBER, "exclusiveMinimum": 0, "maximum": int(NINETY_DAYS)}),
]
MinutesOrNone = Annotated[
    Decimal,
    BeforeValidator(_number),
    AfterValidator(_minutes_or_none),
    WithJsonSchema({**_NUMBER, "minimum": 0, "maximum": int(NINETY_DAYS)}),
]
Count = Annotated[
    int, AfterValidator(_at_least_one), WithJsonSchema({"type": "integer", "minimum": 1})
]
Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, AfterValidator(_name)]
ProviderName = Annotated[str, AfterValidator(_provider)]
Variable = Annotated[str, AfterValidator(_variable)]
InsidePath = Annotated[str, AfterValidator(_path)]
Glob = Annotated[str, AfterValidator(_glob)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Env = Annotated[dict[Variable, str], AfterValidator(_env)]
