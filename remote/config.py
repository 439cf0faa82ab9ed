"""Every setting of a training run, its default, and what it means.

Names and defaults are those of TRM's `cfg_pretrain.yaml` and `arch/trm.yaml`, so that published
commands work as they are; those of our own are marked.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remote.overrides import ConfigError, apply, parse_word

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOSS_TYPES = ("stablemax_cross_entropy", "softmax_cross_entropy")
POSITIONS = ("rope", "learned", "none")


@dataclass
class LossConfig:
    name: str = "losses@ACTLossHead"
    loss_type: str = "stablemax_cross_entropy"


@dataclass
class TRMConfig:
    """Tiny recursive model: one small stack, applied again and again to two states."""

    name: str = "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1"
    loss: LossConfig = field(default_factory=LossConfig)
    halt_exploration_prob: float = 0.1
    halt_max_steps: int = 16  # ACT steps per example; evaluation always takes all
    H_cycles: int = 3  # updates of the answer z_H per ACT step; the last one carries gradient
    L_cycles: int = 6  # updates of the latent z_L per update of z_H; ARC commands use 4
    H_layers: int = 0  # ignored; published configurations carry it
    L_layers: int = 2
    hidden_size: int = 512
    num_heads: int = 8
    expansion: float = 4.0
    puzzle_emb_ndim: int | None = None  # None: hidden_size; 0: no puzzle embedding
    puzzle_emb_len: int = 16  # tokens; 0 with an embedding: as many as it fills
    pos_encodings: str = "rope"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    forward_dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    mlp_t: bool = False  # mix positions by an MLP in place of attention
    no_ACT_continue: bool = True  # noqa: N815, upstream's name

    def settle(self) -> None:
        if self.puzzle_emb_ndim is None:
            self.puzzle_emb_ndim = self.hidden_size
        if self.puzzle_emb_ndim and not self.puzzle_emb_len:
            self.puzzle_emb_len = -(-self.puzzle_emb_ndim // self.hidden_size)
        if not self.puzzle_emb_ndim and self.puzzle_emb_len:
            raise ConfigError("arch.puzzle_emb_ndim=0 needs arch.puzzle_emb_len=0 too")
        if self.puzzle_emb_ndim > self.puzzle_emb_len * self.hidden_size:
            raise ConfigError("arch.puzzle_emb_ndim is more than puzzle_emb_len * hidden_size")
        if self.hidden_size % self.num_heads:
            raise ConfigError("arch.hidden_size must be a multiple of arch.num_heads")
        if self.pos_encodings == "rope" and self.hidden_size // self.num_heads % 2:
            raise ConfigError("rope needs an even arch.hidden_size / arch.num_heads")
        for name in ("halt_max_steps", "H_cycles", "L_cycles", "L_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"arch.{name} must be at least 1")
        _one_of("arch.pos_encodings", self.pos_encodings, POSITIONS)
        _one_of("arch.forward_dtype", self.forward_dtype, DTYPES)
        _one_of("arch.loss.loss_type", self.loss.loss_type, LOSS_TYPES)


ARCHES = {"trm": TRMConfig}


@dataclass
class PretrainConfig:
    arch: TRMConfig
    arch_name: str

    data_paths: list[str] = field(default_factory=lambda: ["data/arc-aug-1000"])
    data_paths_test: list[str] = field(default_factory=list)  # empty: the test split of data_paths
    evaluators: list[dict | str] = field(default_factory=lambda: [{"name": "arc@ARC"}])

    global_batch_size: int = 768
    epochs: int = 100_000  # passes over all puzzles, one augmentation of each
    eval_interval: int | None = 10_000  # epochs; None: evaluate at the end only
    checkpoint_every_eval: bool = True  # the end is always saved
    min_eval_interval: int = 0  # the first so many intervals are not evaluated
    max_steps: int | None = None  # ours: stop after so many optimiser steps

    lr: float = 1e-4
    lr_min_ratio: float = 1.0  # 1: constant after the warm-up; else a cosine down to this share
    lr_warmup_steps: int = 2000
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    puzzle_emb_lr: float = 1e-2
    puzzle_emb_weight_decay: float = 0.1
    freeze_weights: bool = False  # train the puzzle embedding only
    ema: bool = False
    ema_rate: float = 0.999
    seed: int = 0

    project_name: str | None = None
    run_name: str | None = None
    checkpoint_path: str | None = None
    load_checkpoint: str | None = None  # a step or run directory, a file, `latest`, a step number
    eval_save_outputs: list[str] = field(default_factory=list)

    keep_checkpoints: int = 2  # ours: newest so many are kept; 0 keeps all
    log_interval: int = 1  # ours: steps between reports
    device: str = "auto"  # ours: cuda if there is one

    @property
    def epochs_per_iteration(self) -> int:
        return min(self.eval_interval or self.epochs, self.epochs)

    @property
    def iterations(self) -> int:
        return -(-self.epochs // self.epochs_per_iteration)

    def epochs_in(self, iteration: int) -> int:
        """The last iteration may be shorter.  Iterations count from 1."""
        before = (iteration - 1) * self.epochs_per_iteration
        return min(self.epochs_per_iteration, self.epochs - before)

    def settle(self) -> None:
        """Derive what was left open; refuse what cannot be."""
        for name in ("global_batch_size", "epochs", "log_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        for name in ("eval_interval", "max_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, or null")
        if len(self.data_paths) != 1 or len(self.data_paths_test) > 1:
            raise ConfigError("data_paths must name one dataset, data_paths_test at most one")
        if self.seed < 0:
            raise ConfigError("seed must not be negative")
        self.arch.settle()
        if self.freeze_weights and not self.arch.puzzle_emb_ndim:
            raise ConfigError("freeze_weights=True without a puzzle embedding trains nothing")
        self.evaluators = [{"name": e} if isinstance(e, str) else e for e in self.evaluators]

    def settle_names(self, now: str) -> None:
        """`now` makes the default run name unique; every rank must be given the same."""
        data = Path(self.data_paths[0]).name.capitalize()
        self.project_name = self.project_name or f"{data}-ACT-torch"
        self.run_name = self.run_name or f"{self.arch_name}-{now}"
        if self.checkpoint_path is None:
            self.checkpoint_path = str(Path("checkpoints", self.project_name, self.run_name))


def load_config(words: list[str]) -> PretrainConfig:
    """The configuration that a command line of overrides describes."""
    pairs = [parse_word(word) for word in words]
    arch_name = dict(pairs).get("arch", "trm")
    if arch_name not in ARCHES:
        raise ConfigError(f"arch={arch_name} is not available here; there is {', '.join(ARCHES)}")
    config = PretrainConfig(arch=ARCHES[arch_name](), arch_name=arch_name)
    for key, text in pairs:
        if key == "data_path":
            key, text = "data_paths", f"['{text}']"
        if key != "arch":
            apply(config, key, text)
    config.settle()
    return config


def to_dict(config: PretrainConfig) -> dict[str, Any]:
    return asdict(config)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value}: expected one of {', '.join(allowed)}")
