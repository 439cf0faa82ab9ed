"""Why did a training end, or hang?  A pure function from what was found to a sentence and a cure.

The rows of the decision table are in `table.py` and, for people, in docs/evidence.md; the first row
whose sign is there decides.  How signs are recognised is in `findings.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpurun.engine.watch.gpus import GpuSample
from gpurun.engine.watch.stacks import Stack
from gpurun.engine.watch.watcher import How


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of an end.

    log           its last lines
    kernel        kernel messages since the training began
    gpus          the last sample
    stacks        one of each rank, as it stood
    oom_kills     processes that the kernel has killed for want of memory since it began
    broken_loss   no finite loss since some time
    disk_free_gb  on the disk of the run; None when not known
    """

    how: How
    exit_code: int | None = None
    log: str = ""
    kernel: str = ""
    gpus: GpuSample | None = None
    stacks: tuple[Stack, ...] = ()
    oom_kills: int = 0
    broken_loss: bool = False
    disk_free_gb: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cause` is a word for programs; `says` and `cure` are sentences for people."""

    cause: str
    says: str
    cure: str


Named = Mapping[str, str]  # what a sign has found, for the row's sentences


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the decision table: `sign` is for people what `found` is for the program."""

    cause: str
    sign: str
    found: Callable[[Found], Named | None]
    says: str
    cure: str

    def verdict(self, named: Named) -> Verdict:
        return Verdict(self.cause, self.says.format(**named), self.cure.format(**named))


def decide(found: Found, table: tuple[Row, ...]) -> Verdict:
    """The first row whose sign is there; the table's last row always is."""
    for row in table:
        if (named := row.found(found)) is not None:
            return row.verdict(named)
    raise ValueError("the last row of a decision table has no condition")
