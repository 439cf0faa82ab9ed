"""What a configuration amounts to on a dataset, found before anything is spent."""

from dataclasses import dataclass
from itertools import accumulate

import torch

from remote import forecast
from remote.config import PretrainConfig
from remote.dataset.batches import TrainingIteration, evaluation_batches, nominal_steps
from remote.dataset.sets import open_splits
from remote.dataset.split import Split
from remote.models.build import build_model, forward_dtype, table_rows
from remote.overrides import ConfigError
from remote.ranks import Ranks

EXACT_UP_TO_DRAWS = 20_000_000  # about a second; beyond, total steps are an estimate
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Plan:
    train: Split
    test: Split | None
    schedule_steps: int  # upstream's estimate: later ones only count and average
    total_steps: int
    exact: bool  # whether every batch was counted
    first_iteration_steps: int
    iterations: int  # that are begun before `total_steps` are done
    evaluations: int
    batches_per_evaluation: int
    parameters: int
    table: int  # numbers in the puzzle table
    memory: forecast.Memory


def make_plan(config: PretrainConfig, ranks: Ranks) -> Plan:
    """Raises ConfigError or DatasetError for what cannot work."""
    if config.global_batch_size % ranks.world_size:
        raise ConfigError(
            f"global_batch_size {config.global_batch_size} is not divisible by"
            f" {ranks.world_size} processes; the next that is:"
            f" {-(-config.global_batch_size // ranks.world_size) * ranks.world_size}"
        )
    train = open_splits(config.train_paths, "train")
    test = _open_test(config)
    schedule_steps = nominal_steps(train, batch_size=config.global_batch_size, epochs=config.epochs)
    exact = config.epochs * train.groups <= EXACT_UP_TO_DRAWS
    counted = [
        len(iteration_of(config, train, number))
        for number in range(1, (config.iterations if exact else 1) + 1)
    ]
    total = sum(counted)
    if not exact:
        total = round(counted[0] * config.epochs / config.epochs_per_iteration)
    if config.max_steps is not None:
        total = min(total, config.max_steps)
    if min(total, schedule_steps) < 1:
        raise _trains_nothing(config, train)
    parameters, table = _sizes(config, train)
    iterations = _iterations(config, counted, total)
    plan = Plan(
        train=train,
        test=test,
        schedule_steps=schedule_steps,
        total_steps=total,
        exact=exact or total == config.max_steps,
        first_iteration_steps=counted[0],
        iterations=iterations,
        evaluations=max(iterations - config.min_eval_interval, 0) if test else 0,
        batches_per_evaluation=(
            evaluation_batches(test, batch_size=config.global_batch_size) if test else 0
        ),
        parameters=parameters,
        table=table,
        memory=forecast.memory(
            config,
            parameters=parameters,
            table=table_rows(config, train.num_puzzle_identifiers, ranks.world_size)
            * config.arch.puzzle_emb_ndim,
            seq_len=train.seq_len,
            device=ranks.device,
        ),
    )
    _require_memory(config, plan, ranks)
    return plan


def iteration_of(config: PretrainConfig, split: Split, number: int) -> TrainingIteration:
    return TrainingIteration(
        split,
        batch_size=config.global_batch_size,
        epochs=config.epochs_in(number),
        seed=config.seed,
        number=number,
    )


def describe(config: PretrainConfig, plan: Plan, ranks: Ranks) -> list[str]:
    """The lines of `--check`, and what a run says before its first step."""
    rows = config.global_batch_size // ranks.world_size
    limit = plan.memory.limit
    of_limit = f" of {limit / GIB:.1f}" if limit else ""
    return [
        f"data: {', '.join(config.data_paths)}, {len(plan.train.inputs)} examples,"
        f" {plan.train.groups} groups, {plan.train.num_puzzle_identifiers} identifiers",
        f"total steps: {plan.total_steps}{'' if plan.exact else ' (estimate)'}"
        f" in {plan.iterations} iteration(s)",
        f"steps per evaluation: {min(plan.first_iteration_steps, plan.total_steps)}"
        f" ({config.epochs_per_iteration} epochs)",
        *_time_lines(config, plan, ranks),
        f"parameters: {plan.parameters:,} and a puzzle table of {plan.table:,}",
        f"memory per process, estimated: {plan.memory.of(rows) / GIB:.2f}{of_limit} GiB for"
        f" {rows} rows on {ranks.device}, {str(forward_dtype(config, ranks.device))[6:]}",
    ]


def _time_lines(config: PretrainConfig, plan: Plan, ranks: Ranks) -> list[str]:
    rate = forecast.expected_rate(config, plan.train, ranks)
    expected = forecast.times(
        config,
        seq_len=plan.train.seq_len,
        steps=plan.total_steps,
        evaluations=plan.evaluations,
        batches=plan.batches_per_evaluation,
        rate=rate,
    )
    lines = [
        f"evaluations: {plan.evaluations} of {plan.batches_per_evaluation} batches,"
        f" {config.arch.halt_max_steps} ACT steps each: about"
        f" {forecast.shown(expected.evaluation_s)} each, {forecast.shown(expected.evaluations_s)}"
        f" in all, {expected.share:.0%} of the run",
        f"time: about {forecast.shown(expected.run_s)},"
        f" {config.global_batch_size / expected.step_s:.3g} samples/s ({rate.reason})",
    ]
    warning = forecast.warning(config, expected)
    return [*lines, warning] if warning else lines


def _iterations(config: PretrainConfig, counted: list[int], total: int) -> int:
    """How many are begun, for steps may be limited."""
    if len(counted) < config.iterations:  # not all were counted
        return min(-(-total // max(counted[0], 1)), config.iterations)
    done = list(accumulate(counted))
    return next((n for n, steps in enumerate(done, 1) if steps >= total), len(done))


def _trains_nothing(config: PretrainConfig, train: Split) -> ConfigError:
    pairs = round(train.groups * train.mean_puzzle_examples)
    return ConfigError(
        f"this trains no step: an epoch has about {pairs} pairs, and the"
        f" {config.epochs_per_iteration} epoch(s) between evaluations do not fill a batch of"
        f" {config.global_batch_size}. Lower global_batch_size, or raise epochs and eval_interval"
    )


def _sizes(config: PretrainConfig, train: Split) -> tuple[int, int]:
    """Parameters, and numbers in the puzzle table."""
    meta = torch.device("meta")
    with meta:  # sizes only: neither memory nor random numbers are used
        model = build_model(config, train, meta)
    table = train.num_puzzle_identifiers * config.arch.puzzle_emb_ndim
    return sum(p.numel() for p in model.parameters()), table


def _require_memory(config: PretrainConfig, plan: Plan, ranks: Ranks) -> None:
    rows, memory = config.global_batch_size // ranks.world_size, plan.memory
    if memory.limit is None or memory.at_least(rows) <= memory.limit:
        return
    fit = memory.rows_that_fit
    cure = (
        f"at most {fit} rows a process fit: global_batch_size={fit * ranks.world_size}, or more"
        " processes"
        if fit
        else "not even one row fits beside the weights and the puzzle table: use a larger GPU,"
        " or a dataset of fewer augmentations"
    )
    raise ConfigError(
        f"{rows} rows a process need {memory.at_least(rows) / GIB:.1f} GiB or more, {ranks.device}"
        f" has {memory.limit / GIB:.1f}: {cure}"
    )


def _open_test(config: PretrainConfig) -> Split | None:
    wanted = config.evaluators or config.data_paths_test
    if not wanted and not all((path / "test").exists() for path in config.test_paths):
        return None
    return open_splits(config.test_paths, "test", trained_on=config.train_paths)
