"""Two hundred losses of both sides from the same weights and batches.

Sums are added in another order on either side, and training carries what that changes along.  How
far that alone moves a curve is shown by this project's own, uncompiled.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks.train.cases import CURVE_CASE
from benchmarks.train.data import Dataset
from benchmarks.train.job import largest_difference
from benchmarks.train.sides import Upstream, measured

LIMIT = 1e-3  # of a step's loss; runs of other seeds differ by tenths


def compare_curves(data: Dataset, place: Path, upstream: Upstream) -> list[str]:
    """Prints the curves; what was missed."""
    ours = measured(CURVE_CASE, data, "cpu", place)
    theirs = measured(CURVE_CASE, data, "cpu", place, upstream)
    eager = measured(replace(CURVE_CASE, compiled=False), data, "cpu", place)
    print(f"\n{CURVE_CASE.name}, {CURVE_CASE.steps} steps: mean lm_loss of twenty steps each")
    for name, found in (("gpurun", ours), ("upstream", theirs), ("gpurun, uncompiled", eager)):
        means = [sum(found.losses[at : at + 20]) / 20 for at in range(0, CURVE_CASE.steps, 20)]
        print(f"  {name:18}", " ".join(f"{mean:.4f}" for mean in means))
    difference = largest_difference(ours, theirs)
    rounding = largest_difference(ours, eager)
    print(
        f"  a step differs from upstream's by {difference:.1e} at most, uncompiled {rounding:.1e}"
    )
    return [f"a curve of upstream to {LIMIT}"] * (difference > LIMIT)
