"""An interactive box that nobody uses: every GPU under 5 % for `budget.idle_minutes`."""

from gpurun.clock import Clock
from gpurun.engine.watch.gpus import gpu_sample, gpu_text
from gpurun.engine.watch.watcher import IDLE_PERCENT
from gpurun.recipe import Recipe
from gpurun.shell import Shell

LOOK_EVERY_S = 10.0
LOOK_S = 20.0
MOST_BETWEEN_S = 30.0  # a longer gap was not seen, and counts as this much


class Idle:
    """`look()` is called often; it asks the box now and then, and says when it has been idle."""

    def __init__(self, recipe: Recipe, shell: Shell, clock: Clock) -> None:
        self._wanted = recipe.need.wants_gpu
        self._minutes = recipe.budget.idle_minutes
        self._shell = shell
        self._clock = clock
        self._looked_s = clock.boot_s()
        self.seconds = 0.0  # for so long it has been idle by now

    def look(self) -> str:
        """Why the box is ended now; empty while it is not."""
        since_s = self._clock.boot_s() - self._looked_s
        if not self._wanted or since_s < LOOK_EVERY_S:
            return ""
        self._looked_s = self._clock.boot_s()
        result = self._shell.run(gpu_text(), timeout_s=LOOK_S)
        sample = gpu_sample(result.output.splitlines()) if result.ok else None
        if sample is None or not sample.fresh:
            return ""  # what nobody has seen was not idle
        counted_s = min(since_s, MOST_BETWEEN_S)
        self.seconds = self.seconds + counted_s if sample.idle(IDLE_PERCENT) else 0.0
        if self.seconds <= float(self._minutes) * 60:
            return ""
        return (
            f"the box is idle: every GPU was under {IDLE_PERCENT} % for "
            f"{self.seconds / 60:.1f} minutes (budget.idle_minutes {self._minutes})"
        )
