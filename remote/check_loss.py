"""Has training learnt anything?  python -m remote.check_loss METRICS_JSONL --drop 0.05

The mean loss of the last quarter of steps must lie below that of the first by the share `--drop`.
"""

import argparse
import json
import math
import sys
from pathlib import Path

FEWEST_STEPS = 8


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m remote.check_loss")
    parser.add_argument("metrics", type=Path, help="the run's metrics.jsonl")
    parser.add_argument("--drop", type=float, default=0.05, help="share of the loss (default 0.05)")
    parser.add_argument("--steps", type=int, default=FEWEST_STEPS, help="at least so many")
    arguments = parser.parse_args(argv)
    try:
        losses = read_losses(arguments.metrics)
    except (OSError, ValueError, KeyError) as error:
        print(f"check_loss: {arguments.metrics}: {error!r}")
        return 1
    if len(losses) < max(arguments.steps, FEWEST_STEPS):
        expected = max(arguments.steps, FEWEST_STEPS)
        print(f"check_loss: found {len(losses)} steps in {arguments.metrics}, expected {expected}")
        return 1
    quarter = len(losses) // 4
    first, last = sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter
    drop = 1 - last / first
    enough = drop >= arguments.drop  # false for NaN
    print(
        f"check_loss: {first:.4f} -> {last:.4f} over {len(losses)} steps: fell by {drop:.1%},"
        f" expected at least {arguments.drop:.1%}: {'ok' if enough else 'NOT learning'}"
    )
    return 0 if enough and math.isfinite(last) else 1


def read_losses(path: Path) -> list[float]:
    """In order of steps; of a step that was repeated after a resume, the later line."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    losses = {line["step"]: float(line["loss"]) for line in lines if "loss" in line}
    return [losses[step] for step in sorted(losses)]


if __name__ == "__main__":
    sys.exit(main())
