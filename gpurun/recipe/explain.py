"""What pydantic found wrong, as one line: file, line, key, what it is, what to do."""

import difflib
import types
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpurun.errors import UsageError
from gpurun.recipe.kinds import shown
from gpurun.recipe.read import KeyPath, Layer, dotted

_WANTED = {
    "int_type": "a whole number is wanted",
    "bool_type": "write true or false",
    "list_type": "write a list, such as [a, b]",
    "dict_type": "write a mapping, such as {key: value}",
    "model_type": "write a mapping, such as {key: value}",
    "string_type": "text is wanted",
}


def explained(error: ValidationError, layer: Layer, model: type[BaseModel]) -> UsageError:
    """The first thing wrong, in the order of the keys."""
    found = error.errors(include_url=False)
    worst = min(found, key=lambda detail: detail["type"] == "missing")
    return UsageError(_line(worst, layer, model))


def nearest(key: str, keys: Iterable[str], inside: str = "") -> str:
    """The cure of an unknown key."""
    known = list(keys)
    if close := difflib.get_close_matches(key, known, n=1, cutoff=0.5):
        return f"did you mean {inside + '.' if inside else ''}{close[0]}?"
    return f"{inside + ' has' if inside else 'the keys are'} {', '.join(known)}"


def _line(detail: ErrorDetails, layer: Layer, model: type[BaseModel]) -> str:
    path: KeyPath = tuple(part for part in detail["loc"] if part != "[key]")
    place = layer.place(path)
    key = shown(place.key) or "the recipe"
    return f"{place.where}: {key} {_what(detail, path, model)}"


def _what(detail: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "recipe":
        return str(detail["ctx"]["what"])
    if kind == "missing":
        return "is missing: add it"
    if kind == "extra_forbidden":
        keys = _keys_at(model, path[:-1])
        return f"is not a key of a recipe: {nearest(str(path[-1]), keys, dotted(path[:-1]))}"
    if value is None:
        return "is empty: give it a value, or delete the line"
    if kind == "literal_error":
        return f"is {_text(value)}: give {detail['ctx']['expected']}"
    if kind == "string_type" and isinstance(value, bool | int | Decimal):
        what = "true or false" if isinstance(value, bool) else "a number"
        return f'is {_text(value)}, {what} where text is meant: quote it ("{_text(value)}")'
    if kind in _WANTED:
        text = ", which is text" if isinstance(value, str) else ""
        return f"is {_text(value)}{text}: {_WANTED[kind]}"
    return f"is {_text(value)}: {shown(detail['msg'])}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return shown(value) or '""'


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    kind: Any = model
    for part in path:
        kind = kind_inside(kind, part)
    return list(keys_of(kind))


def kind_inside(kind: Any, part: str | int) -> Any:
    """The kind of value under one key; None where there is no such key."""
    kind = unwrapped(kind)
    if get_origin(kind) in (dict, list):
        return unwrapped(get_args(kind)[-1])
    return keys_of(kind).get(str(part))


def keys_of(kind: Any) -> dict[str, Any]:
    """The keys that a mapping of this kind may have, as written in YAML; none where any may be."""
    kind = unwrapped(kind)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {}
    fields = kind.model_fields.items()
    return {field.alias or name: unwrapped(field.annotation) for name, field in fields}


def unwrapped(kind: Any) -> Any:
    """Without Annotated and Optional."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        else:
            return kind
