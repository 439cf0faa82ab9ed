"""What each number among the settings may be: what is outside cannot work, or is a slip."""

import dataclasses
import math
from typing import Any

from remote.overrides import ConfigError

ANY = math.inf
# Least and most, both allowed.  A setting that may be null is not looked at where it is.
RANGES: dict[str, tuple[float, float]] = {
    "global_batch_size": (1, 1_000_000),
    "epochs": (1, 1e9),
    "eval_interval": (1, ANY),
    "min_eval_interval": (0, ANY),
    "max_steps": (1, ANY),
    "log_interval": (1, ANY),
    "checkpoint_every_n_steps": (1, ANY),
    "checkpoint_minutes": (0, ANY),
    "hang_minutes": (0, ANY),
    "keep_last": (0, ANY),
    "keep_best": (0, ANY),
    "seed": (0, 2**31 - 1),
    "lr": (0, ANY),
    "lr_min_ratio": (0, 1),
    "lr_warmup_steps": (0, ANY),
    "beta1": (0, 0.999999),
    "beta2": (0, 0.999999),
    "weight_decay": (0, ANY),
    "puzzle_emb_lr": (0, ANY),
    "puzzle_emb_weight_decay": (0, ANY),
    "ema_rate": (0, 1),
    "arch.halt_exploration_prob": (0, 1),
    "arch.halt_max_steps": (1, 100_000),
    "arch.loops": (1, 100_000),
    "arch.H_cycles": (1, 1000),
    "arch.L_cycles": (1, 1000),
    "arch.L_layers": (1, 1000),
    "arch.num_layers": (1, 1000),
    "arch.hidden_size": (1, 65_536),
    "arch.num_heads": (1, 65_536),
    "arch.expansion": (1e-3, 1000),
    "arch.puzzle_emb_ndim": (0, 1_000_000),
    "arch.puzzle_emb_len": (0, 100_000),
    "arch.rope_theta": (1, ANY),
    "arch.rms_norm_eps": (0, 1),
}


def refuse_what_is_outside(settings: Any, prefix: str = "") -> None:
    """ConfigError names the first; `settings` are a dataclass's, of `prefix` among all."""
    for name in (field.name for field in dataclasses.fields(settings)):
        key, value = prefix + name, getattr(settings, name)
        if key not in RANGES or value is None:
            continue
        least, most = RANGES[key]
        if least <= value <= most and math.isfinite(value):
            continue
        wanted = f"at least {least:g}" if most == ANY else f"from {least:g} to {most:g}"
        raise ConfigError(f"{key}={value:g}: expected a number that is {wanted}")
