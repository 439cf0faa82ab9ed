"""Every setting of a training run, its default, and what it means.

Names and defaults are those of TRM's `cfg_pretrain.yaml`, so that published commands work as they
are; those of our own are marked.  `remote/arch.py` has the settings of the models.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remote.arch import ARCHES, Arch
from remote.overrides import ConfigError, apply, keys, parse_value, parse_word, put
from remote.ranges import refuse_what_is_outside

log = logging.getLogger(__name__)

# Keys of upstream that mean nothing there or here, and those of other names here.
DEAD = ("target_q_update_every", "load_strict", "load_optimizer_state")
ALIASES = {"data_path": "data_paths", "keep_checkpoints": "keep_last"}
# Of an evaluation: what it asked, what was answered, and the numbers of the examples.
ARRAYS = ("inputs", "labels", "puzzle_identifiers")
ARRAYS += ("logits", "preds", "q_halt_logits", "q_continue_logits", "examples")
OTHER_OPTIMISER = {"use_muon": False, "grad_accum_steps": 1}  # upstream's keys, their only value


@dataclass
class PretrainConfig:
    arch: Arch
    arch_name: str

    data_paths: list[str] = field(default_factory=lambda: ["data/arc-aug-1000"])  # one or several
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

    # From here on, ours.
    keep_last: int = 2  # newest checkpoints that are kept; 0 keeps all
    keep_best: int = 1  # and the best ones by best_metric
    best_metric: str = "ARC/pass@1"  # of the evaluation; without it, all/exact_accuracy
    checkpoint_every_n_steps: int | None = None  # besides those at evaluations
    checkpoint_minutes: float = 30.0  # and so long after the last one; 0: never
    log_interval: int | None = None  # steps between reports; None: 1 on a CPU, 10 on a GPU
    hang_minutes: float = 15.0  # without a step, all stacks are shown and the run ends; 0: never
    device: str = "auto"  # cuda if there is one
    compile: bool | None = None  # None: layers on a GPU, attention on a CPU
    cuda_graph: bool = False  # a step is recorded once and played: for a few rows on one GPU
    shard_puzzle_emb: bool = True  # over the ranks; exact
    new_puzzles: bool = False  # load_checkpoint on data of other puzzles: their vectors start anew

    @property
    def train_paths(self) -> list[Path]:
        return [Path(path) for path in self.data_paths]

    @property
    def test_paths(self) -> list[Path]:
        return [Path(path) for path in self.data_paths_test] or self.train_paths

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
        refuse_what_is_outside(self)
        if not self.data_paths:
            raise ConfigError("data_paths must name a dataset, or several: data_paths=[data/arc]")
        self.arch.settle()
        if self.freeze_weights and not self.arch.puzzle_emb_ndim:
            raise ConfigError("freeze_weights=True without a puzzle embedding trains nothing")
        for name in self.eval_save_outputs:
            if name not in ARRAYS:
                nearest = difflib.get_close_matches(name, ARRAYS, 1, cutoff=0.0)[0]
                raise ConfigError(
                    f"eval_save_outputs: an evaluation has no {name}; the nearest is {nearest},"
                    f" there is {', '.join(ARRAYS)}"
                )
        self.evaluators = [{"name": e} if isinstance(e, str) else e for e in self.evaluators]

    def settle_names(self, now: str) -> None:
        """`now` makes the default run name unique; every rank must be given the same."""
        data = Path(self.data_paths[0]).name.capitalize()
        self.project_name = self.project_name or f"{data}-ACT-torch"
        self.run_name = self.run_name or f"{self.arch_name}-{now}"
        if self.checkpoint_path is None:
            self.checkpoint_path = str(Path("checkpoints", self.project_name, self.run_name))


def load_config(words: list[str], saved: Mapping[str, Any] | None = None) -> PretrainConfig:
    """The configuration that a command line of overrides describes.

    What it leaves out is as `saved` has it, by dotted key; what that lacks has its default.
    """
    pairs, saved = [parse_word(word) for word in words], dict(saved or {})
    arch_name = dict(pairs).get("arch", saved.pop("arch_name", "trm"))
    if arch_name not in ARCHES:
        raise ConfigError(f"arch={arch_name} is not available here; there is {', '.join(ARCHES)}")
    config = PretrainConfig(arch=ARCHES[arch_name](), arch_name=arch_name)
    for key, value in saved.items():
        put(config, key, value)
    for key, text in pairs:
        key = ALIASES.get(key, key)
        if key in DEAD or (key.removeprefix("arch.") in config.arch.DEAD and key[:5] == "arch."):
            log.info("%s means nothing here, as upstream: ignored", key)
        elif key in OTHER_OPTIMISER:
            if parse_value(text) != OTHER_OPTIMISER[key]:
                raise ConfigError(f"{key}={text} is not available here; leave it out")
        elif key != "arch":
            apply(config, key, text)
    if "data_paths" not in {*saved, *(ALIASES.get(key, key) for key, _ in pairs)}:
        config.data_paths = _default_data(config.data_paths)
    config.settle()
    return config


def _default_data(paths: list[str]) -> list[str]:
    """Where the default dataset is not there, the only one that is."""
    found = [str(path.parents[1]) for path in Path("data").glob("*/train/dataset.json")]
    if Path(paths[0]).exists() or len(found) != 1:
        return paths
    log.info("data_paths is not given: %s is the only dataset here", found[0])
    return found


def saved_settings(settings: Any, source: Path) -> dict[str, Any]:
    """By dotted key, what makes a configuration a checkpoint's; `source` is its file.

    Another version may have written it: ConfigError for a setting of the model that is not known
    here, other ones are named and left out, and what it lacks has its default.
    """
    try:
        arch = settings["arch_name"]
        known = keys(PretrainConfig(arch=ARCHES[arch](), arch_name=arch))
        found = _flat(settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source} holds no settings of a model known here: {error!r}") from error
    for key in [key for key in found if key not in known]:
        value = found.pop(key)
        if key.startswith("arch."):
            raise ConfigError(
                f"{source}: {key}={value} is not known here: another version of this program has"
                " trained it, use that one"
            )
        log.warning("%s: %s=%s is not known here: ignored", source, key, value)
    if missing := [key for key in known if key not in found and key != "arch_name"]:
        log.warning("%s has no %s: the defaults are taken", source, ", ".join(missing))
    return found


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return found


def to_dict(config: PretrainConfig) -> dict[str, Any]:
    return asdict(config)
