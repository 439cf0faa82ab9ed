"""AdamATan2: Adam whose quotient is an arc tangent, so that it needs no epsilon.

The update is that of the CUDA package adam-atan2 0.0.3, in plain PyTorch.  It is not that of
adam-atan2-pytorch, which scales by 1.27 and corrects the first moment inside the arc tangent.
"""

import logging
import math
from collections.abc import Iterable

import torch
from torch import Tensor

log = logging.getLogger(__name__)


def adam_atan2(
    parameters: list[Tensor], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """The CUDA extension where it runs, this module elsewhere; which one is said.  Never Adam."""
    if parameters[0].is_cuda:
        try:
            import adam_atan2_backend  # noqa: F401
            from adam_atan2 import AdamATan2 as CudaAdamATan2

            log.info("optimiser: AdamATan2, CUDA extension")
            return CudaAdamATan2(parameters, lr=0.0, betas=betas, weight_decay=weight_decay)
        except ImportError as error:
            log.info("the CUDA extension of adam-atan2 does not import: %s", error)
    log.info("optimiser: AdamATan2, in PyTorch")
    return AdamATan2(parameters, lr=0.0, betas=betas, weight_decay=weight_decay)


class AdamATan2(torch.optim.Optimizer):
    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                states = [self._state_of(p) for p in parameters]
                _update(parameters, states, group["lr"], group["betas"], group["weight_decay"])

    def _state_of(self, parameter: Tensor) -> dict:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=_math_dtype(parameter))
        state["step"] += 1
        return state


def _update(
    parameters: list[Tensor],
    states: list[dict],
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> None:
    """p <- p (1 - lr wd) - lr / (1 - b1^t) atan2(m, sqrt(v) / sqrt(1 - b2^t))"""
    beta1, beta2 = betas
    gradients = [p.grad.to(_math_dtype(p)) for p in parameters]
    means = [state["exp_avg"] for state in states]
    squares = [state["exp_avg_sq"] for state in states]
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_lerp_(squares, torch._foreach_mul(gradients, gradients), 1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [math.sqrt(1 - beta2 ** state["step"]) for state in states])
    steps = [torch.atan2(mean, root) for mean, root in zip(means, roots, strict=True)]
    torch._foreach_mul_(steps, [-lr / (1 - beta1 ** state["step"]) for state in states])
    wide = [p.to(_math_dtype(p)) for p in parameters]  # the parameter itself if it is wide
    torch._foreach_mul_(wide, 1 - lr * weight_decay)
    torch._foreach_add_(wide, steps)
    for parameter, new in zip(parameters, wide, strict=True):
        if parameter is not new:
            parameter.copy_(new)


def _math_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
