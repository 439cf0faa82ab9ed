"""The two forms a dataset is written in: the arrays that upstream reads, and the compact file."""

import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from remote.dataset import compact as compact_form
from remote.dataset.compact import Compact
from remote.dataset.expand import arrays_of
from remote.dataset.grids import SEQ_LEN, VOCAB_SIZE
from remote.dataset.identifiers import Names
from remote.dataset.output import Piece, write
from remote.dataset.progress import Progress
from remote.dataset.split import LARGE, SET, SMALL, SPLITS, Rows

ROWS_AT_ONCE = 512  # what stays in a core's cache while it is drawn
FORMATS = ("npy", "compact")

Entries = dict[str, dict[str, Any]]  # of the manifest, by relative path


class _Cancelled(Exception):
    """The other array could not be written."""


def write_npy(directory: Path, compact: Compact) -> Entries:
    """The bytes of upstream's builder, but for the descriptions of `write_descriptions`."""
    entries: Entries = {}
    for split in SPLITS:
        arrays = arrays_of(compact, split)
        (directory / split).mkdir()
        paths = {name: f"{split}/{SET}__{name}.npy" for name in LARGE + SMALL}
        for name in SMALL:
            pieces = [_npy_header(arrays[name]), arrays[name].data]
            entries[paths[name]] = write(directory / paths[name], pieces)
        large = {paths[name]: arrays[name] for name in LARGE}
        entries |= _write_side_by_side(directory, large, f"encode {split}")
    names = Names(compact).as_json()
    entries["identifiers.json"] = write(directory / "identifiers.json", names)
    return entries


def write_compact(directory: Path, compact: Compact) -> Entries:
    content = io.BytesIO()
    np.savez(content, **{field.name: getattr(compact, field.name) for field in fields(compact)})
    for split in SPLITS:
        (directory / split).mkdir()
    return {compact_form.FILE: write(directory / compact_form.FILE, [content.getbuffer()])}


def write_descriptions(directory: Path, compact: Compact) -> Entries:
    """dataset.json of both splits: last, for it is what a dataset is recognised by."""
    entries: Entries = {}
    for split, pairs in zip(SPLITS, compact.pairs, strict=True):
        puzzles = int(compact.puzzles[pairs > 0].sum())
        content = {
            "pad_id": 0,
            "ignore_label_id": 0,
            "blank_identifier_id": 0,
            "vocab_size": VOCAB_SIZE,
            "seq_len": SEQ_LEN,
            "num_puzzle_identifiers": len(Names(compact)),
            "total_groups": int((pairs > 0).sum()),
            "mean_puzzle_examples": int(compact.puzzles @ pairs) / puzzles,
            "total_puzzles": puzzles,
            "sets": [SET],
        }
        entries[f"{split}/dataset.json"] = write_json(directory / split / "dataset.json", content)
    return entries


def write_json(path: Path, content: object) -> dict[str, Any]:
    return write(path, [json.dumps(content).encode()])


def npy_bytes(compact: Compact) -> int:
    """About how much the npy form takes."""
    examples = int((compact.puzzles * compact.pairs).sum())
    return 2 * SEQ_LEN * examples + 50 * len(compact.augmentations)


def _write_side_by_side(directory: Path, arrays: dict[str, Rows], what: str) -> Entries:
    """One thread for each array: drawing, digesting and writing need no lock of Python's."""
    cancelled = threading.Event()
    with (
        Progress(what, sum(map(len, arrays.values())), "sequences") as progress,
        ThreadPoolExecutor(len(arrays)) as threads,
    ):
        written = {
            path: threads.submit(write, directory / path, _pieces(rows, progress, cancelled))
            for path, rows in arrays.items()
        }
        try:
            ended, _ = wait(written.values(), return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
            return {path: future.result() for path, future in written.items()}
        finally:
            cancelled.set()


def _pieces(rows: Rows, progress: Progress, cancelled: threading.Event) -> Iterator[Piece]:
    yield _npy_header(rows)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if cancelled.is_set():
            raise _Cancelled
        block = rows[start : start + ROWS_AT_ONCE]
        yield block.data
        progress.advance(len(block))


def _npy_header(rows: Rows) -> bytes:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(rows.dtype)
    description = {"descr": descr, "fortran_order": False, "shape": rows.shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()
