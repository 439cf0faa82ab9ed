"""Learning rate over steps."""

import math


def lr_share(step: int, *, warmup_steps: int, total_steps: int, min_ratio: float) -> float:
    """What to multiply a base rate with at `step`, counted from 1: linear up, then a cosine."""
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    falling = 0.5 * (1 + math.cos(math.pi * progress))
    return min_ratio + max(0.0, (1 - min_ratio) * falling)
