"""The settings `arch.*` of each model.

Names and defaults are those of TRM's `arch/trm.yaml` and URM's `arch/urm.yaml`, so that published
commands work as they are.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from remote.overrides import ConfigError
from remote.ranges import refuse_what_is_outside

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

    conv_mlp: ClassVar[bool] = False
    DEAD: ClassVar[tuple[str, ...]] = ("H_layers",)

    name: str = "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1"
    loss: LossConfig = field(default_factory=LossConfig)
    halt_exploration_prob: float = 0.1
    halt_max_steps: int = 16  # ACT steps per example; evaluation always takes all
    H_cycles: int = 3  # updates of the answer z_H per ACT step; the last one carries gradient
    L_cycles: int = 6  # updates of the latent z_L per update of z_H; ARC commands use 4
    L_layers: int = 2
    hidden_size: int = 512
    num_heads: int = 8
    expansion: float = 4.0
    puzzle_emb_ndim: int | None = None  # None: hidden_size; 0: no puzzle embedding
    puzzle_emb_len: int = 16  # tokens; 0 with an embedding: as many as it fills
    pos_encodings: str = "rope"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    forward_dtype: str = "auto"  # bfloat16 on a GPU that has it, float32 elsewhere
    mlp_t: bool = False  # mix positions by an MLP in place of attention
    no_ACT_continue: bool = True  # noqa: N815, upstream's name

    @property
    def layer_passes(self) -> tuple[int, int]:
        """Per ACT step in training: without and with gradient."""
        each = self.L_layers * (self.L_cycles + 1)
        return each * (self.H_cycles - 1), each

    def settle(self) -> None:
        _settle(self)


@dataclass
class URMConfig:
    """Universal reasoning model: one state, several layers, an MLP with a convolution."""

    conv_mlp: ClassVar[bool] = True
    mlp_t: ClassVar[bool] = False
    no_ACT_continue: ClassVar[bool] = True  # noqa: N815
    DEAD: ClassVar[tuple[str, ...]] = (
        "profile",
        "eval_interval",
        "checkpoint_every_eval",
        "checkpoint_path",
        "ema",
        "ema_rate",
        "loop_deltas",
    )

    name: str = "urm.urm@URM"
    loss: LossConfig = field(default_factory=LossConfig)
    loops: int = 16  # ACT steps per example; evaluation always takes all
    halt_exploration_prob: float = 0.1
    H_cycles: int = 4  # rounds per ACT step; the last one carries gradient; scripts use 2
    L_cycles: int = 3  # passes through all layers per round; scripts use 6
    num_layers: int = 8  # scripts use 4
    hidden_size: int = 512
    num_heads: int = 8
    expansion: float = 4.0
    puzzle_emb_ndim: int | None = None  # None: hidden_size; 0: no puzzle embedding
    puzzle_emb_len: int = 0  # tokens; 0 with an embedding: as many as it fills
    pos_encodings: str = "rope"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    forward_dtype: str = "auto"  # bfloat16 on a GPU that has it, float32 elsewhere

    @property
    def halt_max_steps(self) -> int:
        return self.loops

    @property
    def layer_passes(self) -> tuple[int, int]:
        """Per ACT step in training: without and with gradient."""
        each = self.num_layers * self.L_cycles
        return each * (self.H_cycles - 1), each

    def settle(self) -> None:
        _settle(self)


Arch = TRMConfig | URMConfig
ARCHES = {"trm": TRMConfig, "urm": URMConfig}


def _settle(arch: Arch) -> None:
    """Derive what was left open; refuse shapes that cannot be."""
    refuse_what_is_outside(arch, "arch.")
    if arch.puzzle_emb_ndim is None:
        arch.puzzle_emb_ndim = arch.hidden_size
    if arch.puzzle_emb_ndim and not arch.puzzle_emb_len:
        arch.puzzle_emb_len = -(-arch.puzzle_emb_ndim // arch.hidden_size)
    if not arch.puzzle_emb_ndim and arch.puzzle_emb_len:
        raise ConfigError("arch.puzzle_emb_ndim=0 needs arch.puzzle_emb_len=0 too")
    if arch.puzzle_emb_ndim > arch.puzzle_emb_len * arch.hidden_size:
        raise ConfigError(
            f"arch.puzzle_emb_ndim={arch.puzzle_emb_ndim} does not fit into"
            f" arch.puzzle_emb_len={arch.puzzle_emb_len} tokens of arch.hidden_size="
            f"{arch.hidden_size}; raise puzzle_emb_len or lower puzzle_emb_ndim"
        )
    if arch.hidden_size % arch.num_heads:
        raise ConfigError(
            f"arch.hidden_size={arch.hidden_size} must be a multiple of arch.num_heads="
            f"{arch.num_heads}"
        )
    if arch.pos_encodings == "rope" and not arch.mlp_t and arch.hidden_size // arch.num_heads % 2:
        raise ConfigError(
            f"arch.pos_encodings=rope turns pairs, but a head is {arch.hidden_size}"
            f" / {arch.num_heads} wide (arch.hidden_size / arch.num_heads); make it even"
        )
    _one_of("arch.pos_encodings", arch.pos_encodings, POSITIONS)
    _one_of("arch.forward_dtype", arch.forward_dtype, DTYPES)
    _one_of("arch.loss.loss_type", arch.loss.loss_type, LOSS_TYPES)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value}: expected one of {', '.join(allowed)}")
