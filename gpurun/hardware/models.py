"""The words for GPUs: what a user or a provider writes, and what nvidia-smi prints.

A wish is a list of words, and all of them must hold: `H100` is every H100, `H100 SXM` not the
PCIe card, `A100 80GB` not the one of 40 GB, `H200` not GH200, `L4` not L40S.
"""

import re

_MAKERS = {"NVIDIA", "GEFORCE", "TESLA", "GPU", "GENERATION", "EDITION"}
_FORMS = {"SXM", "PCIE", "NVL"}
_LONG = {"WS": "WORKSTATION", "S": "SERVER", "Q": "QUADRO"}  # RTX PRO 6000 WS
_SIZE = re.compile(r"(\d{1,4})GI?B")
SIZE_SHARE = 0.08  # "48 GB" is sold for 45 GiB, "192 GB" for 179 GiB

# Where the driver is too old to say its compute capability (before release 510).
_CAPABILITIES = {
    "9.0": ("H100", "H200", "GH200", "H800", "H20"),
    "8.9": ("L4", "L40", "L40S", "4090", "4080", "4070"),
    "8.6": ("A10", "A10G", "A16", "A40", "A4000", "A5000", "A6000", "3090", "3080"),
    "8.0": ("A100", "A800", "A30"),
    "7.5": ("T4", "2080", "2070"),
    "7.0": ("V100",),
}


def is_the(wish: str, name: str, memory_mib: int = 0) -> bool:
    """Whether the GPU that nvidia-smi calls `name` is one of those that `wish` names."""
    has = _words(name)
    has |= {form} if (form := _form(has)) else set()
    for word in _words(wish):
        if size := _SIZE.fullmatch(word):
            gib, wanted = memory_mib / 1024, int(size[1])
            if word not in has and abs(gib - wanted) > SIZE_SHARE * wanted:
                return False
        elif word not in has:
            return False
    return True


def capability_of(name: str) -> str:
    """The compute capability by the model's name; empty where it is not known."""
    words = _words(name)
    return next((cap for cap, models in _CAPABILITIES.items() if words & set(models)), "")


def _words(text: str) -> set[str]:
    upper = re.sub(r"[^A-Z0-9]+", " ", text.upper())
    spaced = re.sub(r"\b(RTX|GTX)(?=\d)", r"\1 ", upper)  # RTX4090
    spaced = re.sub(r"(?<=\d)(ADA|SUPER|TI)\b", r" \1", spaced)  # RTX 6000Ada
    spaced = re.sub(r"\bSXM\d\b", "SXM", spaced)
    return {_LONG.get(word, word) for word in spaced.split()} - _MAKERS


def _form(words: set[str]) -> str:
    """SXM where the name does not say it: only cards for a slot are called PCIe or NVL."""
    if named := words & _FORMS:
        return min(named)
    board = words & {"H100", "H200", "H800", "H20", "B200", "B300"}
    return "SXM" if board else "PCIE"
