"""Rows of the decision table for a training that stands still: who waits for whom, and where."""

from gpurun.engine.watch import findings as f
from gpurun.engine.watch.verdict import Row

LOADER_CURE = (
    "See what the loader reads: a slow or lost disk, a full queue, a lock held across a fork. "
    "Try with num_workers=0."
)
LATE_CURE = (
    "Every rank must make the same calls in the same order: look for a branch that only some "
    "ranks take, or unequal numbers of batches."
)

STALLS: tuple[Row, ...] = (
    Row(
        "idle-loader",
        "idle, and a rank stands in its data loader",
        f.waits_for_loader("idle"),
        "The GPUs wait for data: {who} stands in its data loader, at {at}.",
        LOADER_CURE,
    ),
    Row(
        "idle",
        "idle, and a stack shows where it stands",
        f.stands("idle"),
        "The GPUs have nothing to do: {who} stands at {at}.",
        "If that is work without a GPU, raise budget.idle_minutes.",
    ),
    Row(
        "idle",
        "idle",
        f.ended("idle"),
        "The GPUs have nothing to do.",
        "If the work needs no GPU, rent none; if it needs longer pauses, raise "
        "budget.idle_minutes.",
    ),
    Row(
        "hang-loader",
        "hanging, and a rank stands in its data loader",
        f.waits_for_loader("hang"),
        "It waits for data: {who} stands in its data loader, at {at}.",
        LOADER_CURE,
    ),
    Row(
        "hang-backward",
        "hanging, and a rank stands in backward while the others wait for it, or alone",
        f.one_in_backward,
        "It hangs in backward of {who}, at {at}.",
        "If one GPU hangs again and again it is bad: use another box. Else look at custom "
        "backward functions and CUDA extensions.",
    ),
    Row(
        "hang-missing-rank",
        "hanging, and a rank waits in a collective that another is not in",
        f.one_is_missing,
        "The ranks wait for {who} in a collective ({waits}); it stands at {at}.",
        LATE_CURE,
    ),
    Row(
        "hang-collective",
        "hanging, and all ranks stand in a collective",
        f.all_in_collective,
        "All ranks wait for each other in a collective, at {at}.",
        "Their calls do not match, or the link between them is bad. " + LATE_CURE + " Set "
        "TORCH_DISTRIBUTED_DEBUG: DETAIL under `env` to see which differ.",
    ),
    Row(
        "hang-collective",
        "hanging, with GPUs fully busy at low power",
        f.gpus_spin,
        "The GPUs are fully busy at {watts} of {limit} W: so they wait in a collective.",
        LATE_CURE,
    ),
    Row(
        "hang",
        "hanging, and a stack shows where it stands",
        f.stands("hang"),
        "It stands still: {who} at {at}.",
        "If that takes so long by design, raise watch.hang_minutes.",
    ),
    Row(
        "hang",
        "hanging",
        f.ended("hang"),
        "It stands still, and no stack could be taken.",
        "Register faulthandler on SIGUSR1 in the training to see where: "
        "`faulthandler.register(signal.SIGUSR1)`.",
    ),
)
