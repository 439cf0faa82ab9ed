"""Fetching what a training has saved while it goes on, so that little dies with its box.

It works on a connection of its own, in a thread of its own: a checkpoint of gigabytes must not
keep anybody from looking at the training.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from gpurun.engine import boxfiles
from gpurun.engine.boxfiles import BoxFile
from gpurun.engine.context import Context
from gpurun.errors import GpurunError
from gpurun.model import Attempt
from gpurun.reach import shell_of

GATHER_EVERY_S = 60.0
SPARE_GB = 5.0  # left free on this machine, for the journal


class Gatherer:
    """`look()` is called often and returns at once; leaving waits for what is under way."""

    def __init__(self, ctx: Context, attempt: Attempt, say: Callable[[str], None]) -> None:
        assert attempt.instance_id is not None
        self._ctx = ctx
        self._id = attempt.instance_id
        self._say = say
        self._last_s = ctx.clock.boot_s()
        self._known: Sequence[BoxFile] = ()
        self._seen: set[tuple[str, int, int]] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Gatherer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A run that is told to end does not wait: what is being fetched is fetched again."""
        self._stop.set()
        if error is None:
            self.wait()

    def wait(self) -> None:
        """Until what is under way has come."""
        if self._thread is not None:
            self._thread.join()

    def working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def look(self) -> None:
        now_s = self._ctx.clock.boot_s()
        if now_s - self._last_s < GATHER_EVERY_S:
            return
        if self.working():
            return
        self._last_s = now_s
        self._thread = threading.Thread(target=self._gather, daemon=True, name="gather")
        self._thread.start()

    def _gather(self) -> None:
        try:
            self._fetch()
        except (GpurunError, OSError) as error:  # the next round tries again
            self._say(f"checkpoints could not be fetched now: {error}")

    def _fetch(self) -> None:
        """What has stayed as it is since the last round: anything else may be half written."""
        ctx = self._ctx
        into = ctx.artifacts_dir
        shell = shell_of(ctx.cloud, self._id, ctx.places)
        listed = boxfiles.matching(shell, ctx.recipe.collect)
        settled, self._seen = self._seen, {file.version for file in listed}
        had = {file.version for file in self._known}
        new = [f for f in listed if f.version in settled and f.version not in had]
        if not new:
            return
        into.mkdir(parents=True, exist_ok=True)
        needed_gb = sum(file.size_bytes for file in new) / 1e9
        free_gb = shutil.disk_usage(into).free / 1e9
        if needed_gb + SPARE_GB > free_gb:
            self._say(
                f"{needed_gb:.1f} GB of checkpoints stay on the box until its end: "
                f"{free_gb:.0f} GB are free at {into}"
            )
            return
        came, failed = boxfiles.fetch_these(shell, new, into, who="gather", stop=self._stop.is_set)
        self._known = [*self._known, *came]
        for why in failed:
            self._say(f"while training: {why}")
        rows = boxfiles.documents(boxfiles.newest(self._known), into)
        ctx.fact(lambda: ctx.journal.runs.collected(ctx.run.id, rows))
