"""AdamATan2: Adam whose quotient is an arc tangent, so that it needs no epsilon.

The update is that of the CUDA package adam-atan2 0.0.3, in plain PyTorch.  It is not that of
adam-atan2-pytorch, which scales by 1.27 and corrects the first moment inside the arc tangent.
"""

import logging
import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

log = logging.getLogger(__name__)
MOMENTS = ("exp_avg", "exp_avg_sq")
PURE, EXTENSION = "AdamATan2, in PyTorch", "AdamATan2, CUDA extension"
ITS_GPUS = (8, 9)  # major compute capabilities it has code for: no Turing, no Blackwell


def adam_atan2(
    parameters: list[Tensor],
    *,
    betas: tuple[float, float],
    weight_decay: float,
    recorded: bool = False,
) -> tuple[torch.optim.Optimizer, str]:
    """The CUDA extension where it runs, this module elsewhere; and which one.  Never Adam.

    `recorded`: its rate will be a tensor, which the extension cannot read.

    Its moments exist from the start, so that a step can be undone before there was one.
    """
    device = parameters[0].device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    refusal = "a recorded step needs it" if recorded else None
    if refusal := refusal or why_not_the_extension(capability, os.environ):
        log.info("optimiser: %s (%s)", PURE, refusal)
        optimizer: torch.optim.Optimizer = AdamATan2(
            parameters, lr=0.0, betas=betas, weight_decay=weight_decay, capturable=bool(capability)
        )
        kind = PURE
    else:
        from adam_atan2 import AdamATan2 as Extension

        log.info("optimiser: %s", EXTENSION)
        optimizer = Extension(parameters, lr=0.0, betas=betas, weight_decay=weight_decay)
        kind = EXTENSION
    for parameter in parameters:
        # The extension reads moments in the parameter's own type, whatever they are in.
        dtype = parameter.dtype if kind == EXTENSION else _math_dtype(parameter)
        optimizer.state[parameter] = _fresh_state(parameter, dtype, on_device=bool(capability))
    return optimizer, kind


def why_not_the_extension(
    capability: tuple[int, int] | None, environ: Mapping[str, str]
) -> str | None:
    """`capability` is the GPU's, None without one.  None if the extension can be used.

    GPURUN_OPTIMISER=torch says that the set-up of this box has settled it: nothing is imported.
    """
    if capability is None:
        return "the CUDA extension needs a GPU"
    if environ.get("GPURUN_OPTIMISER") == "torch":
        return "GPURUN_OPTIMISER=torch"
    if capability[0] not in ITS_GPUS:
        return f"the CUDA extension has no code for compute capability {capability}"
    try:
        import adam_atan2
        import adam_atan2_backend  # noqa: F401, a wheel built without nvcc lacks it
    except ImportError as error:
        return (
            f"{error}: the CUDA extension is absent or was built without nvcc; the same maths runs"
            " here.  To build it: pip uninstall -y adam-atan2 && pip install --no-build-isolation"
            " --no-cache-dir adam-atan2, with nvcc on the PATH"
        )
    return None if hasattr(adam_atan2, "AdamATan2") else "the package adam_atan2 is another one"


class AdamATan2(torch.optim.Optimizer):
    """`capturable`: all state is on the device, and `lr` may be a tensor there, so that a CUDA
    graph can hold a step."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
        *,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = _fresh_state(
                        parameter, _math_dtype(parameter), on_device=group["capturable"]
                    )
            if parameters:
                states = [self.state[p] for p in parameters]
                _update(parameters, states, group["lr"], group["betas"], group["weight_decay"])


def _update(
    parameters: list[Tensor],
    states: list[dict[str, Tensor]],
    lr: float | Tensor,
    betas: tuple[float, float],
    weight_decay: float,
) -> None:
    """p <- p (1 - lr wd) - lr / (1 - b1^t) atan2(m, sqrt(v) / sqrt(1 - b2^t))"""
    beta1, beta2 = betas
    counts = [state["step"] for state in states]
    torch._foreach_add_(counts, 1)
    # float64: at a million steps the powers are long gone, at the first few they must be exact.
    times = [count.double() for count in counts]
    corrections1 = [1 - beta1**time for time in times]
    corrections2 = [(1 - beta2**time).sqrt() for time in times]
    gradients = [p.grad.to(_math_dtype(p)) for p in parameters]
    means = [state["exp_avg"] for state in states]
    squares = [state["exp_avg_sq"] for state in states]
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_lerp_(squares, torch._foreach_mul(gradients, gradients), 1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, corrections2)
    steps = [mean.atan2(root) for mean, root in zip(means, roots, strict=True)]
    torch._foreach_mul_(steps, [-lr / correction for correction in corrections1])
    wide = [p.to(_math_dtype(p)) for p in parameters]  # the parameter itself if it is wide
    torch._foreach_mul_(wide, 1 - lr * weight_decay)
    torch._foreach_add_(wide, steps)
    for parameter, new in zip(parameters, wide, strict=True):
        if parameter is not new:
            parameter.copy_(new)


def _fresh_state(parameter: Tensor, dtype: torch.dtype, *, on_device: bool) -> dict[str, Tensor]:
    moments = {name: torch.zeros_like(parameter, dtype=dtype) for name in MOMENTS}
    return {"step": torch.zeros((), device=parameter.device if on_device else None), **moments}


def _math_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
