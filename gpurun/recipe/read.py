"""YAML text to plain values, with the place where each key was written.

The scalars are YAML 1.2 core, read more strictly than most readers do: `on`, `off`, `1:30`,
`012` and `1_000` stay text, numbers keep their digits (int, or Decimal; never float).  Duplicate
keys, tags and anchors that multiply are refused.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpurun.errors import UsageError
from gpurun.recipe.kinds import shown

MOST_BYTES = 250_000
MOST_VALUES = 20_000
MOST_DEPTH = 30

KeyPath = tuple[str | int, ...]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = {".nan": "NaN", ".inf": "Infinity", "+.inf": "Infinity", "-.inf": "-Infinity"}
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key was written, and its name as it was written there."""

    where: str  # "recipes/smoke.yaml:3", or "--set budget.max_usd=1"
    key: str


@dataclass(frozen=True, slots=True)
class Layer:
    """Values, and the place of each key path in them; the path () is the whole."""

    values: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """Of the key itself, or of the nearest mapping around what is not there."""
        for end in range(len(path), -1, -1):
            if found := self.places.get(path[:end]):
                return Place(found.where, (found.key + _steps(path[end:])).removeprefix("."))
        return Place("recipe", dotted(path))


def dotted(path: KeyPath) -> str:
    return _steps(path).removeprefix(".")


def _steps(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def read_file(path: Path, named: str) -> Layer:
    """The mapping that a recipe file holds; `named` is the path as messages show it."""
    text = _file_text(path, named)
    reader = _Reader(named)
    node = _compose(text, named)
    if node is None:
        raise UsageError(f"{named}:1: the recipe is empty: give it name, need and budget")
    values = reader.value(node, ())
    if values is None:
        raise UsageError(f"{named}:1: the recipe is empty: give it name, need and budget")
    if not isinstance(values, dict):
        what = "a list" if isinstance(values, list) else "plain text"
        raise UsageError(f"{named}:1: the recipe is {what}: write `key: value` lines")
    return Layer(values, reader.places)


def read_value(text: str, where: str) -> Any:
    """One value as the command line gives it: a scalar, or a list or mapping in flow style."""
    node = _compose(text, where)
    return None if node is None else _Reader(where).value(node, ())


def _file_text(path: Path, named: str) -> str:
    try:
        if path.is_dir():
            raise UsageError(f"{named} is a directory: name the recipe's .yaml file in it")
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise UsageError(f"{named} {what}: `gpurun recipes` lists the bundled recipes")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UsageError(f"{named} has {size:,} bytes: a recipe has at most {MOST_BYTES:,}")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{named} cannot be read ({why}): check its path and mode") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{named}:{line}: the recipe is not UTF-8 text: save it as UTF-8"
        ) from error
    if bad := re.search(
        r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text
    ):
        line = text[: bad.start()].count("\n") + 1
        raise UsageError(f"{named}:{line}: the recipe holds binary data: save it as plain text")
    return text


def _compose(text: str, named: str) -> Node | None:
    try:
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{named}:{mark.line + 1}" if mark and not named.startswith("--") else named
        problem = shown(error.problem or error.context or "it cannot be read")
        raise UsageError(f"{where}: not YAML: {problem}: mend the line or the one above") from error
    except YAMLError as error:
        raise UsageError(f"{named}: not YAML: {shown(error)}: mend it") from error
    except RecursionError as error:
        raise UsageError(f"{named}: nested too deeply to be a recipe: flatten it") from error
    return node


class _Reader:
    """Walks the nodes once; aliases are expanded, and counted."""

    def __init__(self, named: str) -> None:
        self.places: dict[KeyPath, Place] = {(): Place(f"{named}:1", "")}
        self._named = named
        self._seen = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        self._seen += 1
        if self._seen > MOST_VALUES or len(path) > MOST_DEPTH:
            self._fail(node, path, "anchors or nesting make it too big: write it out plainly")
        tag = str(node.tag)
        if not tag.startswith("tag:yaml.org,2002:") or "python" in tag or tag.endswith("binary"):
            self._fail(node, path, f"has the tag {shown(tag)}: delete it")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return plain_value(node.value) if node.style is None else node.value

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, child in node.value:
            if not isinstance(key_node, ScalarNode):
                self._fail(key_node, path, "has a key that is not text: write `key: value`")
            key = key_node.value
            here = (*path, key)
            if key in values:
                before = self.places[here].where.rpartition(":")[2]
                self._fail(key_node, here, f"is given twice, first in line {before}: delete one")
            self._put(key_node, here)
            values[key] = self.value(child, here)
        return values

    def _item(self, node: Node, path: KeyPath) -> Any:
        self._put(node, path)
        return self.value(node, path)

    def _put(self, node: Node, path: KeyPath) -> None:
        self.places[path] = Place(f"{self._named}:{node.start_mark.line + 1}", dotted(path))

    def _fail(self, node: Node, path: KeyPath, what: str) -> None:
        line = "" if self._named.startswith("--") else f":{node.start_mark.line + 1}"
        subject = shown(dotted(path)) or "the recipe"
        raise UsageError(f"{self._named}{line}: {subject} {what}")


def plain_value(text: str) -> str | int | bool | Decimal | None:
    """An unquoted scalar."""
    low = text.lower()
    if low in _WORDS and text in (low, low.capitalize(), low.upper()):
        return _WORDS[low]
    if low in _NOT_FINITE:
        return Decimal(_NOT_FINITE[low])
    if _INT.fullmatch(text) and len(text) < 30:
        return int(text)
    return Decimal(text) if _FLOAT.fullmatch(text) and len(text) < 60 else text
