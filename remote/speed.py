"""How much arithmetic a configuration is, and how much of it a GPU can do in a second.

Counted is what the model asks for, whatever is computed in fact: the matrix products and attention
of every layer pass, three times where it carries gradient.  Heads, norms and embeddings are left
out (less than a tenth of a percent).  MFU is that count per second, as a share of the GPU's dense
bfloat16 peak, also for a run in another type.
"""

import torch

from remote.config import PretrainConfig

TFLOP_PER_S = {  # dense bfloat16, by what the driver calls the GPU; the longest name that fits
    "A10": 125.0,
    "A100": 311.9,
    "A30": 164.9,
    "A40": 149.7,
    "A800": 311.9,
    "B200": 2250.0,
    "GH200": 989.4,
    "H100": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.4,
    "H200": 989.4,
    "H200 NVL": 835.5,
    "H800": 989.4,
    "L4": 121.2,
    "L40": 181.1,
    "L40S": 362.1,
    "RTX 3090": 71.2,
    "RTX 4090": 165.2,
    "RTX 6000 Ada": 364.2,
    "RTX A6000": 154.8,
}


def peak_flops_per_s(gpu: str) -> float | None:
    """None where it is not known; of a slice of a GPU it never is."""
    if "MIG" in gpu.split():
        return None
    words = gpu.replace("-", " ").split()
    fitting = [name for name in TFLOP_PER_S if _contains(words, name.split())]
    return TFLOP_PER_S[max(fitting, key=len)] * 1e12 if fitting else None


def peak_of(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    return peak_flops_per_s(torch.cuda.get_device_name(device))


def mfu(config: PretrainConfig, seq_len: int, it_per_s: float, peak: float) -> float:
    """`peak` is that of all GPUs together."""
    return it_per_s * step_flops(config, seq_len) / peak


def step_flops(config: PretrainConfig, seq_len: int) -> float:
    """Of one optimiser step on a global batch."""
    without_gradient, with_gradient = config.arch.layer_passes
    passes = without_gradient + 3 * with_gradient
    return passes * _layer_flops(config, seq_len) * config.global_batch_size


def evaluation_flops(config: PretrainConfig, seq_len: int) -> float:
    """Of one global batch in an evaluation: all its ACT steps."""
    steps = config.arch.halt_max_steps
    return steps * config.global_batch_size * forward_flops(config, seq_len)


def forward_flops(config: PretrainConfig, seq_len: int) -> float:
    """Of one ACT step of one row."""
    return sum(config.arch.layer_passes) * _layer_flops(config, seq_len)


def _layer_flops(config: PretrainConfig, seq_len: int) -> float:
    """Of one layer on one sequence, forward."""
    arch = config.arch
    width, length = arch.hidden_size, seq_len + arch.puzzle_emb_len
    inner = _inner(width, arch.expansion)
    mlp = 6 * width * inner + (4 * inner if arch.conv_mlp else 0)  # a convolution of two positions
    mixing = (
        6 * width * _inner(length, arch.expansion)
        if arch.mlp_t
        else 8 * width * width + 4 * length * width
    )
    return length * (mlp + mixing)


def _inner(width: int, expansion: float) -> int:
    return -(-round(expansion * width * 2 / 3) // 256) * 256


def _contains(words: list[str], wanted: list[str]) -> bool:
    spans = range(len(words) - len(wanted) + 1)
    return any(words[start : start + len(wanted)] == wanted for start in spans)
