"""What a dataset costs to build and to read, beside upstream's builder or a plain write.

`python -m benchmarks.dataset` builds the ARC-2 set in both forms with 8, 100 and 1000
augmentations from the files that GPURUN_ARC_DATA names.  `--upstream DIR`, a checkout of TRM, runs
its builder and its loader on the same files in the same run (1000 augmentations need 21 GB there,
so only on request).  Without it the floor is a plain write of as many bytes with numpy.

Builds are measured as processes: CPU time of all threads, wall time, peak resident memory.  The
loader is measured in CPU time on one core.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.clock import SystemClock

ROOT = Path(__file__).resolve().parent.parent
SUBSETS = ["training2", "evaluation2", "concept"]
TARGET_WALL_S, TARGET_PEAK_MB, TARGET_BATCHES_PER_S = 60, 2000, 300
ROWS, BATCHES = 192, 500
PREFIX = "arc-agi"

LOAD = """
import sys, time
from pathlib import Path
from remote.dataset.batches import Shard, TrainingIteration
from remote.dataset.layout import open_split
split = open_split(Path(sys.argv[1]), "train")
made = TrainingIteration(split, batch_size=int(sys.argv[2]), epochs=200, seed=0, number=1)
for _ in range(2):  # the first time reads the pages
    began_s = time.process_time()
    for number, _ in zip(range(int(sys.argv[3])), made.batches(Shard())):
        pass
    used_s = time.process_time() - began_s
print((number + 1) / used_s)
"""

UPSTREAM_LOAD = """
import itertools, sys, time
from puzzle_dataset import PuzzleDataset, PuzzleDatasetConfig
for _ in range(2):
    made = PuzzleDataset(PuzzleDatasetConfig(
        seed=0, dataset_paths=[sys.argv[1]], global_batch_size=int(sys.argv[2]),
        test_set_mode=False, epochs_per_iter=200, rank=0, num_replicas=1))
    batches = iter(made)
    next(batches)
    began_s = time.process_time()
    count = sum(1 for _ in itertools.islice(batches, int(sys.argv[3])))
    used_s = time.process_time() - began_s
print(count / used_s)
"""

PLAIN_WRITE = """
import sys
import numpy as np
left, block = int(sys.argv[2]), np.random.default_rng(0).integers(0, 12, 1 << 22, dtype=np.uint8)
with open(sys.argv[1], "wb") as file:
    while left > 0:
        block[: min(left, len(block))].tofile(file)
        left -= len(block)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    wall_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    cost: Cost
    output_mb: float
    batches_per_s: float | None = None


def main(words: Sequence[str]) -> int:
    wanted = _parser().parse_args(words)
    named = os.environ.get("GPURUN_ARC_DATA")
    if not named:
        print(
            "benchmarks.dataset: GPURUN_ARC_DATA is not set; let it name the folder of ARC's JSON"
            " files (arc-agi_training2_challenges.json ...), concept included",
            file=sys.stderr,
        )
        return 2
    prefix = f"{named}/{PREFIX}" if Path(named).is_dir() else named
    rows, missed = [], []
    with tempfile.TemporaryDirectory(prefix="gpurun-bench-", dir=wanted.folder) as folder:
        for num_aug in wanted.num_aug:
            measured = _ours(prefix, num_aug, Path(folder))
            missed += [row.what for row in measured if _misses(row)]
            npy = Path(folder) / f"npy-{num_aug}"
            if wanted.upstream and num_aug in wanted.upstream_num_aug:
                measured.append(_upstream(wanted, prefix, num_aug, npy, Path(folder)))
            measured.append(_floor(measured[0].output_mb, Path(folder)))
            rows += measured
            shutil.rmtree(npy)
    _print(rows)
    for what in missed:
        print(f"missed its target: {what}", file=sys.stderr)
    return int(bool(missed))


def _ours(prefix: str, num_aug: int, folder: Path) -> list[Row]:
    rows = []
    for form in ("npy", "compact"):
        output = folder / f"{form}-{num_aug}"
        module = [sys.executable, "-m", "remote.dataset.build_arc_dataset", "--format", form]
        cost = _cost([*module, *_arguments(prefix, num_aug, output)], ROOT)
        speed = _number([sys.executable, "-c", LOAD, str(output), str(ROWS), str(BATCHES)], ROOT)
        rows.append(Row(f"aug {num_aug}, {form}", cost, _size_mb(output), speed))
    return rows


def _upstream(
    wanted: argparse.Namespace, prefix: str, num_aug: int, ours: Path, folder: Path
) -> Row:
    """Its builder on the same files, whose bytes must be ours, and its loader on our bytes."""
    output = folder / "upstream"
    python = [wanted.upstream_python]
    build = [*python, "-m", "dataset.build_arc_dataset", *_arguments(prefix, num_aug, output)]
    cost = _cost(build, wanted.upstream)
    for name in sorted(path.relative_to(output) for path in output.rglob("*.npy")):
        if _sha256(output / name) != _sha256(ours / name):
            raise SystemExit(f"benchmarks.dataset: {name} differs from upstream's")
    load = [*python, "-c", UPSTREAM_LOAD, str(ours), str(ROWS), str(BATCHES)]
    row = Row(
        f"aug {num_aug}, upstream (same bytes)",
        cost,
        _size_mb(output),
        _number(load, wanted.upstream),
    )
    shutil.rmtree(output)
    return row


def _floor(size_mb: float, folder: Path) -> Row:
    path = folder / "floor"
    cost = _cost([sys.executable, "-c", PLAIN_WRITE, str(path), str(int(size_mb * 1e6))], ROOT)
    path.unlink()
    return Row("  floor: a plain write of these bytes", cost, size_mb)


def _arguments(prefix: str, num_aug: int, output: Path) -> list[str]:
    """As both builders take them."""
    where = ["--input-file-prefix", prefix, "--output-dir", str(output)]
    return [*where, "--subsets", *SUBSETS, "--test-set-name", SUBSETS[1], "--num-aug", str(num_aug)]


def _cost(command: list[str], directory: Path) -> Cost:
    clock = SystemClock()
    began_s = clock.boot_s()
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said = process.stderr.read()  # type: ignore[union-attr]
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _require_success(process.returncode, command, said)
    wall_s = clock.boot_s() - began_s
    return Cost(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss / 1000)


def _number(command: list[str], directory: Path) -> float:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    _require_success(done.returncode, command, done.stderr)
    return float(done.stdout.split()[-1])


def _require_success(status: int, command: list[str], said: str) -> None:
    if status:
        last = (said.strip().splitlines() or ["nothing was said"])[-1]
        hint = ""
        if "argdantic" in said:
            hint = "; upstream needs argdantic and pydantic: name a Python that has them with"
            hint += " --upstream-python"
        raise SystemExit(f"benchmarks.dataset: {command[0]} exited {status}: {last}{hint}")


def _misses(row: Row) -> bool:
    slow = row.cost.wall_s > TARGET_WALL_S or row.cost.peak_mb > TARGET_PEAK_MB
    return slow or (row.batches_per_s or TARGET_BATCHES_PER_S) < TARGET_BATCHES_PER_S


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _print(rows: list[Row]) -> None:
    print(f"{'':<38} {'CPU s':>7} {'wall s':>7} {'peak MB':>8} {'MB':>8} {'batches/s':>10}")
    for row in rows:
        cost = row.cost
        speed = f"{row.batches_per_s:.0f}" if row.batches_per_s else ""
        print(
            f"{row.what:<38} {cost.cpu_s:7.1f} {cost.wall_s:7.1f} {cost.peak_mb:8.0f}"
            f" {row.output_mb:8.1f} {speed:>10}"
        )
    print(
        f"targets: 1000 augmentations in {TARGET_WALL_S} s on two cores, {TARGET_PEAK_MB} MB;"
        f" {TARGET_BATCHES_PER_S} batches of {ROWS} rows a second on one core"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataset", description=__doc__)
    add = parser.add_argument
    add("--num-aug", type=int, nargs="+", default=[8, 100, 1000])
    add("--upstream", type=Path, metavar="DIR", help="a checkout of TinyRecursiveModels")
    add("--upstream-python", default=sys.executable, help="one with argdantic and torch")
    add("--upstream-num-aug", type=int, nargs="+", default=[8, 100])
    add("--folder", type=Path, help="where to build, 20 GB (default: the temporary folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
