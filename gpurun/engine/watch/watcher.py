"""One training, watched a look at a time: whoever watches many of them steps each in turn."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gpurun.clock import Clock, after
from gpurun.engine import boxfiles, detached
from gpurun.engine.watch.gpus import GPU_STALE_S, GpuSample, gpu_sample, gpu_text
from gpurun.engine.watch.health import health, health_text
from gpurun.engine.watch.metrics import Followed
from gpurun.engine.watch.progress import Progress
from gpurun.engine.watch.said import Lines, from_log, holds, wandb_run
from gpurun.engine.watch.signs import Signs, plain
from gpurun.errors import PhaseFailed
from gpurun.recipe import Recipe
from gpurun.shell import Shell

NAME = "train"
LOOK_S = 20.0
HEALTH_EVERY_S = 10.0
IDLE_PERCENT = 5
AT_WORK_TIMES = 6  # of hang_minutes: so long may GPUs that compute go without a step
FAR_BYTES = 4 * detached.LOG_CHUNK_BYTES
HEARD_BYTES = 4 * 1024 * 1024  # of a log that is fetched at once: its end
MIB_IN_GIB = 1024

How = Literal["exit", "vanished", "rebooted", "hang", "idle"]


@dataclass(frozen=True, slots=True)
class Done:
    """The training has ended well, or was to be stopped here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It has failed, or must be ended; `error` says what was seen, not yet why."""

    how: How
    error: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The box does not answer since this time of the boot clock; of the training nothing is known.

    Not an end: the next step asks again.
    """

    since_s: float
    why: str


Outcome = Done | Failed | Unreachable


class Watcher:
    """`step()` is one look: one round trip, at most LOOK_S.  None means: go on.

    `log` is the local copy of the training's log, which is appended to.  `kept` is what `document`
    has returned to another watcher of the same training, `{}` to the first one.
    """

    def __init__(
        self, recipe: Recipe, shell: Shell, clock: Clock, log: Path, kept: Mapping[str, Any]
    ) -> None:
        mine = kept.get("kept")
        mine = mine if isinstance(mine, dict) else {}
        self.progress = Progress(clock.now(), mine)
        self.signs = Signs(mine)
        self.gpus: GpuSample | None = None
        self.behind = False  # whether there is more to hear than one look could bring
        self._recipe, self._shell, self._clock, self._log = recipe, shell, clock, log
        self._lines = Lines()
        self._wandb = kept.get("wandb") if isinstance(kept.get("wandb"), str) else None
        glob = recipe.watch.metrics
        self._metrics = Followed(glob, mine.get("metrics")) if glob else None
        self._idle_s = _seconds(mine.get("idle_s"))
        self._last_s: float | None = None  # of the last look that was answered
        self._health_s = -HEALTH_EVERY_S
        self._lost_since_s: float | None = None
        self._missing = False

    def step(self) -> Outcome | None:
        try:
            sight = self.look()
        except (ConnectionError, ValueError) as error:  # unknown, not failed; or it talks nonsense
            if self._lost_since_s is None:
                self._lost_since_s = self._clock.boot_s()
            return Unreachable(self._lost_since_s, plain(str(error)))
        self._lost_since_s = None
        return self._ended(sight) or self._stopped() or self._stalled()

    def look(self) -> detached.Sight:
        """One look, whatever the training has come to.  ConnectionError: the outcome is unknown."""
        now_s = self._clock.boot_s()
        sections = {"gpu": gpu_text()}
        if self._metrics is not None:
            sections["metrics"] = self._metrics.text()
        if now_s - self._health_s >= HEALTH_EVERY_S:
            sections["health"] = health_text(self._recipe.collect)
            self._health_s = now_s
        if self.behind:
            sections["size"] = f"wc -c < {detached.log_of(NAME)}"
        offset = self._log.stat().st_size if self._log.exists() else 0
        sight = detached.look(self._shell, NAME, offset, sections, timeout_s=LOOK_S)
        self._hear(sight, offset)
        self._see(sight.sections, now_s)
        return sight

    @property
    def idle_since(self) -> datetime:
        """From when on every GPU has been idle, as far as it was seen; now, if they work."""
        return after(self._clock.now(), -self._idle_s)

    def look_at_health(self) -> None:
        """Ask for the kernel's, the memory group's and the disk's last word."""
        result = self._shell.run(health_text(self._recipe.collect), timeout_s=LOOK_S)
        if result.ok:
            self.signs.see(health(result.output.splitlines()))

    def document(self) -> dict[str, Any]:
        """The `train` part of `status --json`, and under `kept` what the next watcher needs."""
        shown: dict[str, Any] = dict.fromkeys(("gpu_util", "power_w", "gpu_mem_gib"))
        if self.gpus is not None and self.gpus.fresh:
            cards = self.gpus.gpus
            shown["gpu_util"] = _mean([gpu.util_percent for gpu in cards])
            shown["power_w"] = _sum([gpu.power_w for gpu in cards])
            used_mib = _sum([gpu.used_mib for gpu in cards])
            shown["gpu_mem_gib"] = None if used_mib is None else round(used_mib / MIB_IN_GIB, 1)
        trouble = self.signs.trouble(self.gpus, broken=self.progress.broken_since is not None)
        return (
            self.progress.document()
            | shown
            | {"trouble": trouble, "wandb": self._wandb}
            | {
                "kept": self.progress.kept()
                | self.signs.kept()
                | {
                    "metrics": self._metrics.kept() if self._metrics else {},
                    "idle_s": round(self._idle_s),
                }
            }
        )

    def _hear(self, sight: detached.Sight, offset: int) -> None:
        """What was printed is appended to the log; metrics and log move the progress."""
        chunk = self._fetched(sight, offset) or sight.log
        if chunk:
            with suppress(OSError), self._log.open("ab") as file:  # what is cut is read again
                file.write(chunk)
        said = self._lines.take(chunk[-HEARD_BYTES:])
        self._wandb = wandb_run(said) or self._wandb
        if sight.exit_code is not None and not chunk:
            said += self._lines.rest()
        heard = from_log(self._recipe.watch.pattern, said) if self._recipe.watch.pattern else []
        self.behind = len(sight.log) >= detached.LOG_CHUNK_BYTES
        if self._metrics is not None:
            heard += self._metrics.hear(sight.sections.get("metrics", ()))
            self.behind = self.behind or self._metrics.behind
        for line in heard:
            self.progress.hear(line, self._clock.now())

    def _fetched(self, sight: detached.Sight, offset: int) -> bytes:
        """The rest of a log that is far ahead, fetched in one go; empty when it is not."""
        size = "".join(sight.sections.get("size", ())).strip()
        behind = int(size[:18]) - offset if size.isdecimal() else 0
        if behind < FAR_BYTES or behind * 2 < int(size[:18]):  # fetching it whole costs more
            return b""
        part = self._log.with_suffix(".part")
        try:
            self._shell.get(detached.log_of(NAME), part)
            with part.open("rb") as file:
                file.seek(offset)
                return file.read()
        except OSError:
            return b""
        finally:
            part.unlink(missing_ok=True)

    def _see(self, sections: Mapping[str, tuple[str, ...]], now_s: float) -> None:
        """GPUs, kernel, disk, checkpoints; and how long the GPUs have been idle."""
        self.gpus = gpu_sample(sections.get("gpu", ()))
        if "health" in sections:
            seen = health(sections["health"])
            self.signs.see(seen)
            if seen.checkpoint_age_s is not None:
                self.progress.checkpoint(after(self._clock.now(), -seen.checkpoint_age_s))
        since_s = 0.0 if self._last_s is None else min(now_s - self._last_s, GPU_STALE_S)
        self._last_s = now_s
        if self.gpus is not None and self.gpus.fresh:  # what nobody has seen was not idle
            self._idle_s = self._idle_s + since_s if self.gpus.idle(IDLE_PERCENT) else 0.0

    def _ended(self, sight: detached.Sight) -> Outcome | None:
        if sight.exit_code is not None:
            return None if sight.log or self.behind else self._exited(sight.exit_code)
        if sight.rebooted:
            return Failed("rebooted", "the box was rebooted while training")
        missing, self._missing = self._missing, not sight.alive
        if missing and not sight.alive:  # twice: it may write its exit code between two questions
            return Failed("vanished", "the training is gone without an exit code")
        return None

    def _exited(self, exit_code: int) -> Outcome:
        if exit_code != 0:
            return Failed("exit", f"the training exited {exit_code}", exit_code)
        expect = self._recipe.train.expect if self._recipe.train else []
        try:
            missing = [glob for glob in expect if not boxfiles.matching(self._shell, [glob])]
        except PhaseFailed as error:
            return Failed("exit", f"the training exited 0, but {error}", 0)
        if missing:
            what = ", ".join(missing)
            return Failed(
                "exit", f"the training exited 0, but nothing matches train.expect {what}", 0
            )
        return Done("the training finished")

    def _stopped(self) -> Done | None:
        rule = self._recipe.watch.stop_when
        return Done(f"stopped because {rule}") if rule and holds(rule, self.progress.said) else None

    def _stalled(self) -> Failed | None:
        """Hanging or idle, as far as everything that was said has been heard."""
        if self.behind:
            return None
        idle_minutes = self._recipe.budget.idle_minutes
        if self._recipe.need.wants_gpu and self._idle_s > float(idle_minutes) * 60:
            return Failed(
                "idle",
                f"the box is idle: every GPU was under {IDLE_PERCENT} % for "
                f"{self._idle_s / 60:.1f} minutes (budget.idle_minutes {idle_minutes})",
            )
        watched = self._recipe.watch
        if not (watched.metrics or watched.pattern):
            return None
        still_s = (self._clock.now() - self.progress.moved_at).total_seconds()
        limit_s = float(watched.hang_minutes) * 60
        if self.gpus and self.gpus.compute and self.progress.broken_since is None:
            limit_s *= AT_WORK_TIMES  # an evaluation takes no steps
        if still_s <= limit_s:
            return None
        what = "no step with a finite loss" if self.progress.broken_since else "no step"
        return Failed(
            "hang",
            f"the training hangs: {what} for {still_s / 60:.1f} minutes "
            f"(watch.hang_minutes {watched.hang_minutes})",
        )


def _seconds(kept: Any) -> float:
    return float(kept) if isinstance(kept, int | float) and kept >= 0 else 0.0


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None
