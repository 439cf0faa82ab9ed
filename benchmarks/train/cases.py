"""What is trained to be measured: the settings of each case."""

from dataclasses import dataclass

TINY8 = {
    "arch": "trm",
    "arch.hidden_size": "64",
    "arch.num_heads": "4",
    "arch.L_layers": "1",
    "arch.H_cycles": "1",
    "arch.L_cycles": "1",
    "arch.puzzle_emb_ndim": "0",
    "arch.puzzle_emb_len": "0",
    "arch.forward_dtype": "float32",
    "arch.halt_exploration_prob": "0",  # drawn differently; without it losses compare
    "global_batch_size": "32",
    "epochs": "4",
    "eval_interval": "4",
    "lr_warmup_steps": "5",
}
TINY8_STEPS = 17
GPU = {
    "arch.forward_dtype": "bfloat16",
    "arch.halt_exploration_prob": "0",
    "epochs": "2000",
    "eval_interval": "2000",
    "ema": "True",
}
TRM = {"arch": "trm", "arch.L_cycles": "4", **GPU}
URM = {"arch": "urm", "arch.num_layers": "4", "arch.H_cycles": "2", "arch.L_cycles": "6", **GPU}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    settings: dict[str, str]
    warmup: int
    steps: int
    upstream_has_it: bool = True
    compiled: bool = False
    evaluates: bool = True
    recorded: bool = False  # this project's side: a step is one CUDA graph


# Fewer rows, and a rate at which 200 steps teach something.
CURVE = TINY8 | {"global_batch_size": "8", "epochs": "48", "eval_interval": "48", "lr": "1e-3"}
CURVE_CASE = Case("tiny8, 8 rows", CURVE, 0, 200, compiled=True, evaluates=False)

CPU_CASE = Case("tiny8, 32 rows", TINY8, 1, TINY8_STEPS - 1, compiled=True)
GPU_CASES = [
    Case(
        name,
        settings | {"global_batch_size": rows},
        warmup=10,
        steps=40,
        upstream_has_it=theirs,
        compiled=compiled,
        evaluates=evaluates,
        recorded=compiled and rows == "8",
    )
    for name, settings, rows, theirs, evaluates in (
        ("TRM H3 L4, 192 rows", TRM, "192", True, True),
        ("TRM H3 L4, 8 rows", TRM, "8", True, False),
        ("URM 4 layers H2 L6, 96 rows", URM, "96", False, False),
    )
    for compiled in (False, True)
]
