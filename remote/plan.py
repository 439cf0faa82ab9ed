"""What a configuration amounts to on a dataset, found before anything is spent."""

from dataclasses import dataclass
from pathlib import Path

import torch

from remote.config import PretrainConfig
from remote.dataset.batches import TrainingIteration, evaluation_batches, nominal_steps
from remote.dataset.layout import DatasetError, Split, open_split
from remote.models.build import build_model, forward_dtype
from remote.overrides import ConfigError
from remote.ranks import Ranks

EXACT_UP_TO_DRAWS = 20_000_000  # about a second; beyond, total steps are upstream's estimate
ACTIVATION_BYTES = 40  # per token, layer pass and unit of width, in eager bfloat16
VOCAB_SIZE = 12


@dataclass(frozen=True, slots=True)
class Plan:
    train: Split
    test: Split | None
    schedule_steps: int  # upstream's estimate: the learning rate follows it
    total_steps: int
    exact: bool  # whether every batch was counted
    first_iteration_steps: int
    iterations: int
    evaluations: int
    batches_per_evaluation: int


def make_plan(config: PretrainConfig, ranks: Ranks) -> Plan:
    if config.global_batch_size % ranks.world_size:
        raise ConfigError(
            f"global_batch_size {config.global_batch_size} is not divisible by"
            f" {ranks.world_size} processes"
        )
    train = open_split(Path(config.data_paths[0]), "train")
    if train.vocab_size != VOCAB_SIZE:
        raise DatasetError(f"vocab_size is {train.vocab_size}, expected {VOCAB_SIZE}")
    test = _open_test(config)
    schedule_steps = nominal_steps(train, batch_size=config.global_batch_size, epochs=config.epochs)
    exact = config.epochs * train.groups <= EXACT_UP_TO_DRAWS
    counted = [
        len(iteration_of(config, train, number))
        for number in range(1, (config.iterations if exact else 1) + 1)
    ]
    total = min(schedule_steps, sum(counted)) if exact else schedule_steps
    if config.max_steps is not None:
        total = min(total, config.max_steps)
    if total < 1:
        pairs = round(train.groups * train.mean_puzzle_examples)
        raise ConfigError(
            f"this trains no step: an epoch has about {pairs} pairs, {config.epochs} epoch(s) do"
            f" not fill a batch of {config.global_batch_size}. Lower global_batch_size or raise"
            " epochs"
        )
    return Plan(
        train=train,
        test=test,
        schedule_steps=schedule_steps,
        total_steps=total,
        exact=exact,
        first_iteration_steps=counted[0],
        iterations=config.iterations,
        evaluations=max(config.iterations - config.min_eval_interval, 0) if test else 0,
        batches_per_evaluation=(
            evaluation_batches(test, batch_size=config.global_batch_size) if test else 0
        ),
    )


def iteration_of(config: PretrainConfig, split: Split, number: int) -> TrainingIteration:
    return TrainingIteration(
        split,
        batch_size=config.global_batch_size,
        epochs=config.epochs_in(number),
        seed=config.seed,
        number=number,
    )


def describe(config: PretrainConfig, plan: Plan, ranks: Ranks) -> list[str]:
    """The lines of `--check`."""
    meta = torch.device("meta")
    with meta:  # sizes only: neither memory nor random numbers are used
        model = build_model(config, plan.train, meta)
    parameters = sum(p.numel() for p in model.parameters())
    table = plan.train.num_puzzle_identifiers * config.arch.puzzle_emb_ndim
    exactly = "" if plan.exact or config.max_steps else " (estimate)"
    return [
        f"data: {config.data_paths[0]}, {len(plan.train.inputs)} examples,"
        f" {plan.train.groups} groups, {plan.train.num_puzzle_identifiers} identifiers",
        f"total steps: {plan.total_steps}{exactly} in {plan.iterations} iteration(s), the first"
        f" with {plan.first_iteration_steps}",
        f"evaluations: {plan.evaluations} of {plan.batches_per_evaluation} batches,"
        f" {config.arch.halt_max_steps} ACT steps each",
        f"parameters: {parameters:,} and a puzzle table of {table:,}",
        f"memory per process, estimated: {_memory_gib(config, plan, ranks, parameters, table):.2f}"
        f" GiB on {ranks.device}, {forward_dtype(config, ranks.device)}",
    ]


def _memory_gib(
    config: PretrainConfig, plan: Plan, ranks: Ranks, parameters: int, table: int
) -> float:
    """Weights, gradients, two moments, the average; the table; activations that carry gradient."""
    copies = 4 + config.ema
    arch = config.arch
    rows = config.global_batch_size // ranks.world_size
    passes = arch.L_layers * (arch.L_cycles + 1)
    bytes_each = ACTIVATION_BYTES * forward_dtype(config, ranks.device).itemsize // 2
    tokens = rows * (plan.train.seq_len + arch.puzzle_emb_len)
    activations = tokens * arch.hidden_size * passes * bytes_each
    return (4 * parameters * copies + 4 * table + activations) / 2**30


def _open_test(config: PretrainConfig) -> Split | None:
    path = Path((config.data_paths_test or config.data_paths)[0])
    if not config.evaluators and not (path / "test").exists():
        return None
    return open_split(path, "test")
