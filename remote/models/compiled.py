"""torch.compile for the one function that takes the time, the layers, once over; on a CPU, where it
gains nothing, C++ of our own.

Compiling the layers and not the whole recursion keeps it to a small graph (one without gradient,
one with, one with it on both inputs), which is ready in seconds and cached on the box.

Proven to agree with eager on a CPU; its speed on a GPU is not yet measured.
"""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from remote.config import PretrainConfig
from remote.models.act import ACTLossHead
from remote.models.blocks import Block, run
from remote.models.cpu import attention, mlp
from remote.models.layers import Attention, SwiGLU

log = logging.getLogger(__name__)
CACHE = Path("~/.cache/torchinductor")


def compile_model(model: ACTLossHead, config: PretrainConfig, device: torch.device) -> bool:
    """Whether it is compiled now."""
    wanted, word = decide(config.compile, device.type, os.environ, shutil.which)
    log.info("compile: %s", word)
    if wanted:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE.expanduser()))
        os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
        model.model.inner.run = torch.compile(run, dynamic=False)
    return wanted


def speed_up_on_cpu(model: ACTLossHead, config: PretrainConfig) -> None:
    """In float32; for a model that is not compiled."""
    inner = model.model.inner
    if config.compile is False or inner.dtype != torch.float32:
        return
    mixers = [module for module in inner.modules() if isinstance(module, Attention)]
    sizes = (mixers[0].width, config.arch.hidden_size) if mixers else None
    if sizes and (mix := attention.make(*sizes, os.environ, shutil.which)):
        for layer in mixers:
            layer.mix = mix
    blocks = [module for module in inner.modules() if isinstance(module, Block)]
    fed = [block for block in blocks if isinstance(block.mlp, SwiGLU)]
    if fed and (feed := mlp.make(*fed[0].mlp.widths, os.environ, shutil.which)):
        for block in fed:
            block.feed = feed


def decide(
    setting: bool | None,
    device: str,
    environ: Mapping[str, str],
    which: Callable[[str], str | None],
) -> tuple[bool, str]:
    """Whether to compile, and a word on why; `setting` is the configuration's."""
    if "DISABLE_COMPILE" in environ:
        return False, "off, DISABLE_COMPILE is set"
    if setting is False:
        return False, "off, compile=False"
    if setting is None and device != "cuda":
        return False, "off on a CPU, where it is slower; compile=True turns it on"
    names = ("CC", "gcc", "clang") if device == "cuda" else ("CXX", "g++", "clang++")
    compilers = [environ.get(names[0], ""), *names[1:]]
    if not any(name and which(name) for name in compilers):
        return False, (
            f"off, for no compiler was found ({', '.join(names[1:])}): apt-get install -y g++"
        )
    return True, "on"
