"""A checkpoint as a file that upstream reads:  python -m remote.export CHECKPOINT FILE

CHECKPOINT is a `step_N` directory or a run's directory (its newest).  TRM becomes a plain
dictionary of weights, as upstream's `step_N`; URM one with `step` and `model_state_dict`, as its
`step_N.pt`.  The averaged weights are taken if there are any, as upstream does; `--raw` takes the
others.  `--compiled` writes the names that a compiled upstream model has.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from remote.checkpoint import STATE, CheckpointError, find
from remote.files import appearing
from remote.weights import COMPILED, TABLE, Weights, read_file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m remote.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", help="a step_N directory, or a run's directory")
    parser.add_argument("file", type=Path, help="what to write")
    parser.add_argument("--raw", action="store_true", help="not the averaged weights")
    parser.add_argument("--compiled", action="store_true", help="names start with _orig_mod.")
    arguments = parser.parse_args(argv)
    try:
        step = find(arguments.checkpoint, Path(arguments.checkpoint))
        if step.is_file():
            raise CheckpointError(f"{step} is a file of weights already")
        weights = assembled(step, averaged=not arguments.raw)
        state = read_file(step / STATE)
        if arguments.compiled:
            weights = {COMPILED + name: tensor for name, tensor in weights.items()}
        with appearing(arguments.file) as partial:
            torch.save(_as_upstream(state, weights), partial)
    except (CheckpointError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(f"wrote {arguments.file}: {len(weights)} tensors of step {state['step']}")
    return 0


def assembled(step: Path, *, averaged: bool) -> Weights:
    """All weights of a checkpoint, the puzzle table of all ranks put together."""
    state = read_file(step / STATE)
    weights = {name: tensor.clone() for name, tensor in state["model"].items()}
    if averaged and state["ema"]:
        weights |= {n: mean.to(weights[n].dtype, copy=True) for n, mean in state["ema"].items()}
    if state["puzzle_rows"]:
        ranks = [read_file(step / f"rank_{rank}.pt") for rank in range(state["world_size"])]
        parts = [rank["puzzle_table"] for rank in ranks if rank["puzzle_table"] is not None]
        weights[TABLE] = torch.cat(parts)
    return weights


def _as_upstream(state: dict[str, Any], weights: Weights) -> dict[str, Any]:
    if state["config"]["arch_name"] == "urm":
        return {"step": state["step"], "model_state_dict": weights}
    return weights


if __name__ == "__main__":
    sys.exit(main())
