"""Stacks of processes, as faulthandler and py-spy print them: where does each of them stand?"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_FRAMES = 200
_PROCESS = re.compile(r"== process (\d{1,12}) rank (\d{1,6}|-): (.*)")
_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\):"  # faulthandler
    r"|Thread \d+ \([^)]*\)(?:: \"(?P<name>[^\"]*)\")?"  # py-spy
)
_FAULTHANDLER = re.compile(r'  File "(.+)", line (\d{1,9}|\?\?\?) in (\S+)')
_PY_SPY = re.compile(r"    (\S+) \((.+?)(?::(\d{1,9}))?\)$")

COLLECTIVE_FILES = ("torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py")
LOADER_FILES = (
    "torch/utils/data/dataloader.py",
    "torch/utils/data/_utils/",
    "remote/dataset/prefetch.py",
)
BACKWARD_FILES = ("torch/autograd/", "torch/_tensor.py")


class Place(StrEnum):
    """What kind of code a thread stands in."""

    COLLECTIVE = "a collective"
    LOADER = "its data loader"
    BACKWARD = "backward"
    OTHER = "other code"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; the line is 0 where it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process, the innermost call first."""

    pid: int
    rank: int | None
    frames: tuple[Frame, ...]

    @property
    def who(self) -> str:
        return f"process {self.pid}" if self.rank is None else f"rank {self.rank}"

    @property
    def place(self) -> Place:
        """What the outermost known code is: a loader may be waiting on a lock of its own."""
        for place, files in (
            (Place.LOADER, LOADER_FILES),
            (Place.COLLECTIVE, COLLECTIVE_FILES),
            (Place.BACKWARD, BACKWARD_FILES),
        ):
            if any(part in frame.file for frame in self.frames for part in files):
                return place
        return Place.OTHER

    @property
    def at(self) -> str:
        """The innermost call in the user's own code."""
        own = [f for f in self.frames if not _is_library(f.file)]
        return str((own or self.frames)[0])


def read(text: str) -> list[Stack]:
    """The main thread of every process that has one, in the order of the text."""
    stacks: list[Stack] = []
    for part in _parts(text):
        matched = _PROCESS.match(part[0])
        if matched is None:
            continue
        frames = _main_thread(part[1:])
        if frames:
            rank = None if matched.group(2) == "-" else int(matched.group(2))
            stacks.append(Stack(int(matched.group(1)), rank, tuple(frames)))
    return stacks


def ranks(stacks: Sequence[Stack]) -> list[Stack]:
    """One stack of each rank, else every stack there is: loaders bear their rank's number too."""
    firsts: dict[int, Stack] = {}
    for stack in stacks:
        if stack.rank is not None:
            firsts.setdefault(stack.rank, stack)
    return list(firsts.values()) or list(stacks)


def _parts(text: str) -> list[list[str]]:
    parts: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("== "):
            parts.append([line])
        elif parts:
            parts[-1].append(line)
    return parts


def _main_thread(lines: Sequence[str]) -> list[Frame]:
    """The thread named so, else the last one: faulthandler prints the main thread last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in lines:
        if started := _THREAD.match(line):
            threads.append((started["name"] or "", []))
        elif threads and (frame := _frame(line)) and len(threads[-1][1]) < MOST_FRAMES:
            threads[-1][1].append(frame)
    known = [frames for name, frames in threads if name == "MainThread" and frames]
    known = known or [frames for _, frames in threads if frames]
    return known[-1] if known else []


def _frame(line: str) -> Frame | None:
    if matched := _FAULTHANDLER.match(line):
        file, number, function = matched.groups()
        return Frame(file, int(number) if number.isdigit() else 0, function)
    if matched := _PY_SPY.match(line):
        function, file, number = matched.groups()
        return Frame(file, int(number or 0), function)
    return None


def _is_library(file: str) -> bool:
    inside = ("/site-packages/", "/dist-packages/", "/lib/python", "torch/", *LOADER_FILES)
    first = file.split("/")[0].removesuffix(".py")  # py-spy names modules from their package on
    return any(part in file for part in inside) or first in sys.stdlib_module_names
