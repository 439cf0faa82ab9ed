"""What users call GPUs, and Vast's own names for them.

Facts that shape it: a search matches names exactly, and there is no bare `H100` or `A100`; the
A100s of 40 and 80 GB share their names and differ in memory; memory is listed in MiB, a little
less than it is sold as.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

CATALOGUE = (
    "H100 SXM",
    "H100 NVL",
    "H100 PCIE",
    "H200",
    "H200 NVL",
    "GH200 SXM",
    "B200",
    "A100 SXM4",
    "A100 SXM",
    "A100 PCIE",
    "A100X",
    "A800 PCIE",
    "L40S",
    "L40",
    "L4",
    "A40",
    "A10",
    "RTX 4090",
    "Tesla V100",
)
SEVERAL_SIZES = {"A100", "A800", "V100"}
NVLINKED = {"H100", "H200", "H800", "A100", "A800", "B200", "B300", "GH200"}
SIZE_SHARE = 0.08  # "80 GB" is listed as 79.6 GiB, "24 GB" of an L4 as 22.5
_MAKERS = {"NVIDIA", "GEFORCE", "TESLA", "GPU"}
_SIZE = re.compile(r"(\d{1,4})GI?B")


@dataclass(frozen=True, slots=True)
class Wish:
    """A GPU as a user names it: words that its name must hold, and its memory if they said it."""

    words: frozenset[str]
    size_gb: int | None = None

    @classmethod
    def of(cls, text: str) -> "Wish":
        words = _words(text)
        sizes = [int(found[1]) for word in words if (found := _SIZE.fullmatch(word))]
        return cls(
            frozenset(word for word in words if not _SIZE.fullmatch(word)),
            sizes[0] if sizes else None,
        )

    def names(self, known: Iterable[str]) -> list[str]:
        """Those of Vast's names that are meant: `H100` is all three, `H200` not GH200."""
        return [name for name in known if self.words and self.words <= _words(name)]

    def fits(self, gpu_ram_mb: int) -> bool:
        if self.size_gb is None:
            return True
        gib = gpu_ram_mb / 1024
        return abs(gib - self.size_gb) <= SIZE_SHARE * self.size_gb

    @property
    def wants_nvlink(self) -> bool:
        """For several of them: whoever wants the cards without it names their form."""
        return bool(self.words & NVLINKED) and not self.words & {"PCIE", "NVL"}


def near(text: str, known: Iterable[str]) -> list[str]:
    by_upper = {name.upper(): name for name in known}
    close = difflib.get_close_matches(text.upper(), by_upper, n=3, cutoff=0.4)
    return [by_upper[name] for name in close]


def shown(name: str, gpu_ram_mb: int) -> str:
    """In gpurun's words: with the memory where the name alone does not tell."""
    if not _words(name) & SEVERAL_SIZES or not gpu_ram_mb:
        return name
    gib = gpu_ram_mb / 1024
    size = min((16, 32, 40, 80), key=lambda gb: abs(gb - gib))
    return f"{name} {size}GB"


def _words(text: str) -> set[str]:
    spaced = re.sub(r"[^A-Z0-9]+", " ", text.upper())
    spaced = re.sub(r"\b(RTX|GTX)(?=\d)", r"\1 ", spaced)
    return set(re.sub(r"\bSXM\d\b", "SXM", spaced).split()) - _MAKERS
