"""Which number each augmentation has, and which name.

Numbers are given in order of first appearance over the groups.  Two groups may be of one puzzle (a
task can be in two subsets); augmentations of theirs with the same name share its number.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from remote.dataset.compact import Compact, decoded
from remote.dataset.grids import NAME_SEPARATOR, augmented_name

BLANK = "<blank>"
_ITSELF = 12345678  # the code of the augmentation that changes nothing


def numbered(compact: Compact) -> np.ndarray:
    """The identifier of every augmentation: int32 [P]."""
    first_seen, number = _first_seen(compact)
    ranks = np.empty(len(first_seen), np.int32)
    ranks[np.argsort(first_seen)] = np.arange(len(first_seen), dtype=np.int32)
    return ranks[number] + np.int32(compact.first_identifier)


class Names(Sequence[str]):
    """The name of every identifier, made when it is asked for."""

    def __init__(self, compact: Compact) -> None:
        self._compact = compact
        self._puzzles = np.sort(_first_seen(compact)[0])  # where each identifier came first
        self._group_ends = np.cumsum(compact.puzzles)
        self._first = int(compact.first_identifier)

    def __len__(self) -> int:
        return self._first + len(self._puzzles)

    def __getitem__(self, identifier: int) -> str:  # type: ignore[override]
        if not 0 <= identifier < len(self):
            raise IndexError(f"identifier {identifier} of {len(self)}")
        if identifier < self._first:
            return BLANK
        puzzle = int(self._puzzles[identifier - self._first])
        group = int(np.searchsorted(self._group_ends, puzzle, side="right"))
        name, code = str(self._compact.names[group]), self._compact.augmentations[puzzle]
        if code == _ITSELF:
            return name
        (symmetry,), (colours,) = decoded(np.array([code]))
        return augmented_name(name, int(symmetry), "".join(map(str, colours)))

    def __iter__(self) -> Iterator[str]:
        """All at once: a hundred times as fast as one after the other."""
        return iter(json.loads(b"".join(self.as_json())))

    def as_json(self) -> Iterator[bytes]:
        """The text that `json.dumps` makes of all names, in pieces, without making each name."""
        yield json.dumps([BLANK] * self._first).encode()[:-1]
        first = np.zeros(len(self._compact.augmentations), bool)
        first[self._puzzles] = True
        codes, ends = self._compact.augmentations, self._group_ends.tolist()
        for name, begin, end in zip(self._compact.names.tolist(), [0, *ends], ends, strict=False):
            yield from _group_as_json(name, codes[begin:end][first[begin:end]])
        yield b"]"


def _group_as_json(name: str, codes: np.ndarray) -> Iterator[bytes]:
    quoted = json.dumps(name)
    if len(codes) and codes[0] == _ITSELF:
        yield f", {quoted}".encode()
        codes = codes[1:]
    symmetries, colours = decoded(codes)
    entry = f", {quoted[:-1]}{NAME_SEPARATOR}t0{NAME_SEPARATOR}0000000000".encode()
    entries = np.tile(np.frombuffer(entry + b'"', np.uint8), (len(codes), 1))
    entries[:, -15] += symmetries
    entries[:, -11:-1] += colours
    yield entries.tobytes()


def _first_seen(compact: Compact) -> tuple[np.ndarray, np.ndarray]:
    """Of each name the first augmentation that has it, and of each augmentation its name."""
    _, puzzle_of_group = np.unique(compact.names, return_inverse=True)
    key = np.repeat(puzzle_of_group.astype(np.uint64), compact.puzzles) << np.uint64(32)
    _, first, name = np.unique(key | compact.augmentations, return_index=True, return_inverse=True)
    return first, name
