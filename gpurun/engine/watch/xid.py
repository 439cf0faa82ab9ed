"""NVIDIA's Xid codes, as the kernel reports them, and what each asks of the user.

Codes and meanings are those of NVIDIA's "Xid Errors" guide.
"""

import re
from dataclasses import dataclass

_XID = re.compile(r"(?<!S)Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,4})")
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,6}), (.{0,80})")
_OFF_THE_BUS = re.compile(r"fallen off the bus")  # some drivers say it without a code
OFF_THE_BUS = 79
ANOTHER_BOX = "The GPU is bad: resume on another box."
CODE = "Look at the code that ran last: an index out of range, or a kernel built for another GPU."


@dataclass(frozen=True, slots=True)
class Meaning:
    says: str
    cure: str
    blames: bool = True  # whether it explains an end; else it follows from another error


XIDS = {
    13: Meaning("a kernel ran into an error of the graphics engine", CODE),
    31: Meaning("a kernel reached for GPU memory that is not its own", CODE),
    43: Meaning("the GPU stopped processing a program that had failed", CODE, blames=False),
    45: Meaning("the GPU cleaned up after a program that ended", CODE, blames=False),
    48: Meaning("a double bit error in GPU memory", ANOTHER_BOX),
    61: Meaning("the GPU's microcontroller stopped at a breakpoint", ANOTHER_BOX),
    62: Meaning("the GPU's microcontroller halted", ANOTHER_BOX),
    63: Meaning("a row of GPU memory was set aside for another", ANOTHER_BOX, blames=False),
    64: Meaning("a bad row of GPU memory could not be set aside", ANOTHER_BOX),
    69: Meaning("a kernel ran into an error of the graphics engine's class", CODE),
    74: Meaning("an NVLink between GPUs failed", ANOTHER_BOX),
    79: Meaning("the GPU has fallen off the bus", ANOTHER_BOX),
    92: Meaning("single bit errors of GPU memory are frequent", ANOTHER_BOX, blames=False),
    94: Meaning("an error of GPU memory, contained in one program", "Resume: it may go on here."),
    95: Meaning("an error of GPU memory that was not contained", ANOTHER_BOX),
    109: Meaning("the GPU could not switch between programs in time", ANOTHER_BOX),
    119: Meaning("the GPU's system processor did not answer", ANOTHER_BOX),
    120: Meaning("the GPU's system processor failed", ANOTHER_BOX),
    140: Meaning("an error of GPU memory that was not corrected", ANOTHER_BOX),
    154: Meaning("the driver asks for a reset after another error", ANOTHER_BOX, blames=False),
}
UNKNOWN = Meaning("an error that its driver reports", ANOTHER_BOX)


@dataclass(frozen=True, slots=True)
class Xid:
    """One report of the driver."""

    code: int
    bus: str
    meaning: Meaning

    def __str__(self) -> str:
        where = f" of the GPU at {self.bus}" if self.bus else ""
        return f"Xid {self.code}{where}: {self.meaning.says}"


def xid_of(line: str) -> Xid | None:
    """The Xid in a kernel message; the process that the driver names may be missing or wrong."""
    if matched := _XID.search(line):
        code = int(matched.group(2))
        return Xid(code, matched.group(1), XIDS.get(code, UNKNOWN))
    if _OFF_THE_BUS.search(line):
        return Xid(OFF_THE_BUS, "", XIDS[OFF_THE_BUS])
    return None


def sxid_says(line: str) -> str | None:
    """An error of the switch between the GPUs."""
    matched = _SXID.search(line)
    return f"SXid {matched.group(2)} of an NVSwitch: {matched.group(3)}" if matched else None


def xid_says(line: str) -> str | None:
    """A line for people, of a kernel message that is about a GPU or the switch between them."""
    found = xid_of(line)
    return sxid_says(line) or (str(found) if found else None)
