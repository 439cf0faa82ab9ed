"""`key=value` words on a command line, applied to dataclasses.

`k=v`, `+k=v` and `++k=v` mean the same.  Values are written as in YAML's flow style: numbers,
true/false, null, [a, b], {k: v}, quoted or bare text.
"""

import dataclasses
import difflib
import types
import typing
from typing import Any

BARE = {"true": True, "false": False, "null": None, "~": None, "": None}


class ConfigError(Exception):
    """A setting that does not exist, cannot be read, or does not fit the others."""


def parse_word(word: str) -> tuple[str, str]:
    """Key and value of one override, both as text."""
    key, equals, text = word.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not key:
        raise ConfigError(f"{word!r} is not of the form key=value")
    return key, text


def apply(config: Any, key: str, text: str) -> None:
    """Set the field named by a dotted key to the value that `text` denotes."""
    owner, name, hint = _field(config, key)
    setattr(owner, name, _fit(key, parse_value(text), hint, text))


def put(config: Any, key: str, value: Any) -> None:
    """Set it to a value that was read before: no letter of it means anything here."""
    owner, name, hint = _field(config, key)
    setattr(owner, name, _fit(key, value, hint, None))


def keys(config: Any, prefix: str = "") -> list[str]:
    """Every dotted key that can be set."""
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        nested = dataclasses.is_dataclass(value)
        found += keys(value, f"{prefix}{field.name}.") if nested else [prefix + field.name]
    return found


def parse_value(text: str) -> Any:
    value, rest = _value(text.strip(), stop="")
    if rest.strip():
        raise ConfigError(f"{text!r}: nothing may follow {text[: len(text) - len(rest)]!r}")
    return value


def _field(config: Any, key: str) -> tuple[Any, str, Any]:
    """Whose it is, its name there, and its type."""
    owner, path = config, key.split(".")
    for index, part in enumerate(path):
        hints = typing.get_type_hints(type(owner)) if dataclasses.is_dataclass(owner) else {}
        if part not in hints:
            raise ConfigError(_unknown(key, config))
        if index < len(path) - 1:
            owner = getattr(owner, part)
    return owner, part, hints[part]


def _unknown(key: str, config: Any) -> str:
    known = keys(config)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    last = key.rsplit(".", 1)[-1]
    for candidate in known:
        if candidate.rsplit(".", 1)[-1] == last:
            nearest = [candidate]
    return f"no setting {key}; the nearest is {nearest[0]}"


def _value(text: str, stop: str) -> tuple[Any, str]:
    """The value at the start of `text`, which ends at one of `stop`, and what follows it."""
    if text[:1] == "[":
        return _sequence(text[1:])
    if text[:1] == "{":
        return _mapping(text[1:])
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        if end < 0:
            raise ConfigError(f"{text!r} has no closing quote")
        return text[1:end], text[end + 1 :]
    end = next((index for index, letter in enumerate(text) if letter in stop), len(text))
    return _bare(text[:end].strip()), text[end:]


def _sequence(text: str) -> tuple[list[Any], str]:
    items: list[Any] = []
    text = text.lstrip()
    while text[:1] != "]":
        item, text = _value(text, stop=",]")
        items.append(item)
        text = _after_item(text, "]")
    return items, text[1:]


def _mapping(text: str) -> tuple[dict[str, Any], str]:
    items: dict[str, Any] = {}
    text = text.lstrip()
    while text[:1] != "}":
        key, colon, text = text.partition(":")
        if not colon:
            raise ConfigError(f"{key!r} has no value in {{...}}")
        items[key.strip().strip("'\"")], text = _value(text.lstrip(), stop=",}")
        text = _after_item(text, "}")
    return items, text[1:]


def _after_item(text: str, closing: str) -> str:
    text = text.lstrip()
    if text[:1] not in (",", closing) or not text:
        raise ConfigError(f"expected , or {closing} before {text!r}")
    return text[1:].lstrip() if text[0] == "," else text


def _bare(text: str) -> Any:
    if text.lower() in BARE:
        return BARE[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _fit(key: str, value: Any, hint: Any, text: str | None) -> Any:
    """`value` as the field's type has it, or an error that says what the field takes.

    `text` is how it was written on the command line, None if it was not.
    """
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is types.NoneType and (value is None or value == "None"):
            return None
        if origin is list:
            if isinstance(value, str) and value[:1] == "[":  # quoted twice by a shell script
                value = parse_value(value)
            items = value if isinstance(value, list) else [value]
            return [item if isinstance(item, dict) else str(item) for item in items]
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if origin is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if origin is str and value is not None and not isinstance(value, list | dict):
            return str(value) if text is None else text.strip().strip("'\"")
        if origin in (int, bool) and type(value) is origin:
            return value
    names = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    shown = repr(value) if text is None else text
    raise ConfigError(f"{key}={shown}: expected {names}")
