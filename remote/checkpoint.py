"""Checkpoints: directories `step_N` that appear whole or not at all.

`state.pt` has what all ranks share, `rank_R.pt` what each has of its own, `config.json` and
`provenance.json` are for readers, `files.json` lists sizes and digests, `score.json` comes after
the evaluation.  The box can vanish any second, so everything is written beside and renamed.
"""

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from remote.config import PretrainConfig, to_dict
from remote.dataset.sets import fingerprint
from remote.files import sync, write_json
from remote.provenance import provenance
from remote.ranks import Ranks
from remote.resume import (
    rank_state,
    refuse_another_arch,
    refuse_other_puzzles,
    restore_progress,
    restore_weights,
    shared_state,
)
from remote.shelf import SCORE, is_step, make_room, number, prune, steps
from remote.training import Training
from remote.weights import TABLE, CheckpointError, load_into, load_table, plain, read_file

__all__ = ["CheckpointError", "NotSaved", "check", "find", "load", "rate", "save"]

log = logging.getLogger(__name__)
STATE, FILES = "state.pt", "files.json"


class NotSaved(Exception):
    """A checkpoint could not be written."""


def save(training: Training, config: PretrainConfig, ranks: Ranks, votes: dict) -> Path:
    """Called by all ranks.  `votes` is what evaluators keep from one evaluation to the next.

    NotSaved, on all ranks, if it fails on one: the newest of the earlier ones is untouched, older
    ones may have made room for a second try.
    """
    try:
        return _save(training, config, ranks, votes)
    except NotSaved:
        run = Path(config.checkpoint_path)
        if not ranks.any(
            flag=ranks.first
            and make_room(run, keep_last=config.keep_last, keep_best=config.keep_best)
        ):
            raise
        log.warning("%s has no room for another checkpoint: only the newest is kept", run)
    return _save(training, config, ranks, votes)


def _save(training: Training, config: PretrainConfig, ranks: Ranks, votes: dict) -> Path:
    final = Path(config.checkpoint_path) / f"step_{training.step}"
    partial = final.with_name(final.name + ".tmp")
    _together(ranks, final, lambda: _begin(partial) if ranks.first else None)
    listed = _together(
        ranks, final, lambda: _write(partial / f"rank_{ranks.rank}.pt", rank_state(training, ranks))
    )
    if ranks.first:
        log.info("saving %s", final)

    def finish() -> None:
        state = shared_state(training, config, ranks, votes)
        made_by = provenance(training.data_digest, training.data_files, training.optimizer_kind)
        parts = [
            *listed,
            _write(partial / STATE, state),
            _write_json(partial / "config.json", to_dict(config)),
            _write_json(partial / "provenance.json", made_by),
        ]
        _write_json(
            partial / FILES, {name: entry for part in parts for name, entry in part.items()}
        )
        _put(partial, final)
        prune(final.parent, keep_last=config.keep_last, keep_best=config.keep_best)

    _together(ranks, final, lambda: finish() if ranks.first else None)
    return final


def load(
    training: Training, config: PretrainConfig, ranks: Ranks, *, to_train: bool = True
) -> dict:
    """Continue where `load_checkpoint` left off; returns the evaluators' votes.

    Without `to_train` only what evaluating needs: weights, average, step and votes.
    """
    path = _same_on_all(config, ranks)
    if path.is_file():
        weights = plain(read_file(path), path)
        load_into(training.model, weights, path)
        if config.arch.puzzle_emb_ndim and TABLE in weights:
            table = weights[TABLE]
            embedding = training.model.model.inner.puzzle_emb
            load_table(embedding, [(0, table)], len(table), path)
        if training.ema is not None:
            training.ema.load(dict(training.model.named_parameters()))
        log.info("loaded weights only from %s: step, rates and data start anew", path)
        return {}
    state = read_file(path / STATE)
    with _of_this_version(path):
        refuse_other_puzzles(config, training.data_digest, state, path)
        restore_weights(training, config, state, path)
        if to_train:
            restore_progress(training, config, ranks, state, path)
            log.info("continuing from %s at step %d", path, training.step)
        return state["votes"]


def check(config: PretrainConfig) -> None:
    """That `load_checkpoint` names a sound one, of this architecture and data; loads nothing."""
    path = find(config.load_checkpoint, Path(config.checkpoint_path))
    if path.is_dir():
        state = read_file(path / STATE)
        with _of_this_version(path):
            refuse_another_arch(config, state["config"], path)
            refuse_other_puzzles(config, fingerprint(config.train_paths), state, path)
    else:
        plain(read_file(path), path)


def find(wanted: str, run: Path) -> Path:
    """A sound step directory, or a file of weights, from what the user named.

    Of directories it is the newest sound one that is not after the one named.
    """
    if wanted == "latest":
        return _newest_sound(steps(run), run)
    path = Path(wanted)
    if wanted.isdigit() or (wanted.startswith("step_") and not path.exists()):
        path = run / f"step_{wanted.removeprefix('step_')}"
    if path.is_file():
        return path
    if path.is_dir() and not is_step(path):
        return _newest_sound(steps(path), path)
    if path.is_dir():
        before = [step for step in steps(path.parent) if number(step) <= number(path)]
        return _newest_sound(before, path)
    raise CheckpointError(
        f"no checkpoint {wanted}, neither here nor in {run}; there is"
        f" {', '.join(step.name for step in steps(run)) or 'none'}"
    )


def rate(step: Path, metrics: Mapping[str, Any], config: PretrainConfig) -> None:
    """Note how good a checkpoint turned out, and keep the best ones."""
    value = metrics.get(config.best_metric, metrics.get("all/exact_accuracy"))
    if isinstance(value, int | float) and step.is_dir():
        _write_json(step / SCORE, {"metric": config.best_metric, "value": value})
        prune(step.parent, keep_last=config.keep_last, keep_best=config.keep_best)


@contextlib.contextmanager
def _of_this_version(path: Path) -> Iterator[None]:
    """What it holds is read by name; one that is not there, or is another thing, is named."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} was written by another version of this program ({type(error).__name__}:"
            f" {error}): use that one"
        ) from error


def _same_on_all(config: PretrainConfig, ranks: Ranks) -> Path:
    """What rank 0 finds: another rank must not take another one."""
    found: tuple[str, str] = ("", "")
    if ranks.first:
        _recover(Path(config.checkpoint_path))
        try:
            found = (str(find(config.load_checkpoint, Path(config.checkpoint_path))), "")
        except CheckpointError as error:
            found = ("", str(error))
    path, problem = ranks.gather(found)[0]
    if problem:
        raise CheckpointError(problem)
    return Path(path)


def _newest_sound(candidates: list[Path], where: Path) -> Path:
    if not candidates:
        raise CheckpointError(f"no checkpoint in {where}")
    problems = []
    for step in reversed(candidates):
        problem = _damage(step)
        if problem is None:
            return step
        log.warning("%s is damaged (%s): the one before it is taken", step, problem)
        problems.append(problem)
    raise CheckpointError(
        f"every checkpoint in {where} is damaged; the newest is {candidates[-1]} ({problems[0]})."
        " Put back a copy of one, or name a sound one"
    )


def _damage(step: Path) -> str | None:
    """What differs from the list of its files."""
    try:
        listed = json.loads((step / FILES).read_text())
        for name, entry in listed.items():
            size = (step / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes of {entry['bytes']}"
            if _sha256(step / name) != entry["sha256"]:
                return f"the content of {name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None if STATE in listed else f"no {STATE}"


def _recover(run: Path) -> None:
    """Of a run that was killed between the two renames of `_put`."""
    for old in run.glob("step_*.old"):
        if not old.with_suffix("").exists():
            old.rename(old.with_suffix(""))


def _begin(partial: Path) -> None:
    _recover(partial.parent)
    for leftover in partial.parent.glob("step_*.tmp"):  # of a run that was killed while saving
        shutil.rmtree(leftover)
    partial.mkdir(parents=True)


def _put(partial: Path, final: Path) -> None:
    """One of the same step is only put aside until this one is in place."""
    sync(partial)
    old = final.with_name(final.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _together(ranks: Ranks, final: Path, act: Any) -> list[Any]:
    """What `act` returns on each rank; if it fails on one, it has failed on all."""
    problem, result = "", None
    try:
        result = act()
    except (OSError, RuntimeError) as error:  # torch's own writer has the latter for a full disk
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    answers = ranks.gather((problem, result))
    if problems := [problem for problem, _ in answers if problem]:
        if ranks.first:  # a half of one would keep the room that the next try needs
            shutil.rmtree(final.with_name(final.name + ".tmp"), ignore_errors=True)
        left = steps(final.parent)
        raise NotSaved(
            f"{final} was not saved ({problems[0]}); the last checkpoint is"
            f" {left[-1] if left else 'none'}. Make room on that disk"
        )
    return [result for _, result in answers]


def _write(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    torch.save(content, path)
    sync(path)
    return {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}}


def _write_json(path: Path, content: Any) -> dict[str, Any]:
    write_json(path, content)
    return {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
