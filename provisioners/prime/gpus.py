"""GPUs in Prime Intellect's words: `H100_80GB` and a socket, `H100 80GB SXM` here."""

import difflib
import re
from collections.abc import Iterable

# What its API documents; a row may name others.
KNOWN = (
    "A10_24GB", "A30_24GB", "A40_48GB", "A100_40GB", "A100_80GB", "H100_80GB", "H200_96GB",
    "H200_141GB", "GH200_96GB", "GH200_480GB", "GH200_624GB", "B200_180GB", "B300_262GB", "GB200",
    "GB300", "L4_24GB", "L40_48GB", "L40S_48GB", "V100_16GB", "V100_32GB", "P100_16GB", "P4_8GB",
    "P40_24GB", "T4_16GB", "RTX3070_8GB", "RTX3080_10GB", "RTX3080Ti_12GB", "RTX3090_24GB",
    "RTX3090Ti_24GB", "RTX4070Ti_12GB", "RTX4080_16GB", "RTX4080Ti_16GB", "RTX4090_24GB",
    "RTX5090_32GB", "RTX4000_8GB", "RTX5000_16GB", "RTX6000_24GB", "RTX8000_48GB",
    "RTX2000Ada_16GB", "RTX4000Ada_20GB", "RTX5000Ada_32GB", "RTX6000Ada_48GB", "A2000_6GB",
    "A4000_16GB", "A4500_20GB", "A5000_24GB", "A6000_48GB", "RTX_PRO_6000B_96GB",
)  # fmt: skip
_BOTH_FORMS = re.compile(r"[AH]\d00|V100|P100")
_FORMS = ("SXM", "PCIe")


def name_of(gpu_type: str, socket: object) -> str:
    """`H100 80GB SXM`: the form is said where there are several."""
    words = gpu_type.replace("6000B", "6000_Blackwell").replace("_", " ")
    words = re.sub(r"^RTX(?=\d)", "RTX ", words)
    form = "SXM" if str(socket).startswith("SXM") else str(socket) if socket else ""
    several = form == "SXM" or _BOTH_FORMS.match(words)
    return f"{words} {form}" if form and several else words


def known_names() -> set[str]:
    return {name_of(gpu_type, form) for gpu_type in KNOWN for form in _FORMS}


def near(wish: str, names: Iterable[str]) -> list[str]:
    """The names that are most like what was asked for."""
    short = {" ".join(name.split()[:-1]) or name for name in names} | set(names)
    by_key = {name.upper(): name for name in sorted(short)}
    found = difflib.get_close_matches(wish.upper().replace("_", " "), by_key, n=3, cutoff=0.4)
    return [by_key[key] for key in found]
