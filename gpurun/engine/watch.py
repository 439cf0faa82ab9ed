"""Watching a launched training: one look per tick, until it ends or must be ended."""

import json
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gpurun.engine import boxfiles, detached
from gpurun.engine.context import Context
from gpurun.errors import PhaseFailed, ProviderError
from gpurun.model import InstanceState
from gpurun.recipe import Recipe
from gpurun.shell import Shell
from gpurun.store import StoreError

LOOK_EVERY_S = 1.0
LOOK_S = 20.0
LOST_S = 300.0
LONGEST_S = 90 * 86400.0
MOST = 1e18
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_RULE = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|==|>|<)\s*(\S+)\s*$")
NAMES = ("step", "total_steps", "it_per_s", "samples_per_s", "loss")


@dataclass(slots=True)
class Progress:
    """What the training has said of itself, and when it last went on."""

    moved_at: datetime
    said: dict[str, Any] = field(default_factory=dict)

    def hear(self, line: Mapping[str, Any], now: datetime) -> None:
        if _number(line.get("step")) != _number(self.said.get("step")):
            self.moved_at = now
        self.said.update(line)

    def document(self) -> dict[str, Any]:
        """The `train` part of `status --json`."""
        shown = {name: _number(self.said.get(name)) for name in NAMES}
        step, total, rate = shown["step"], shown["total_steps"], shown["it_per_s"]
        eta_s = None
        if step is not None and total is not None and rate:
            eta_s = round(max(0, total - step) / rate, 1)
            eta_s = eta_s if 0 <= eta_s <= LONGEST_S else None
        return shown | {
            "gpu_util": None,
            "power_w": None,
            "gpu_mem_gib": None,
            "eta_s": eta_s,
            "last_checkpoint_at": None,
        }


def watch(ctx: Context, shell: Shell, log: Path, each_look: Callable[[], None]) -> str:
    """Until the training has ended well; returns the reason.  Raises PhaseFailed otherwise."""
    progress = Progress(ctx.clock.now())
    rule = ctx.recipe.watch.stop_when
    lost_since_s: float | None = None
    while True:
        try:
            sight, lost_since_s = look_once(ctx, shell, log, progress), None
        except ConnectionError as error:  # the outcome is unknown, not a failure
            lost_since_s = lost_since_s or ctx.clock.boot_s()
            if _stopped(ctx) or ctx.clock.boot_s() - lost_since_s > LOST_S:
                raise PhaseFailed(f"{error}. The training's last lines:\n{tail(log)}") from error
            each_look()
            ctx.clock.sleep(LOOK_EVERY_S)
            continue
        with suppress(StoreError):  # a journal that is locked or full does not stop a training
            ctx.journal.runs.progress(ctx.run.id, progress.document())
        if sight.exit_code is not None and not sight.log:
            return _ended(ctx.recipe, shell, sight.exit_code, log)
        if sight.exit_code is None and (sight.rebooted or not sight.alive):
            raise PhaseFailed(
                "the box was rebooted while training" if sight.rebooted else _vanished(log)
            )
        if rule and holds(rule, progress.said):
            return f"stopped because {rule}"
        _check_hang(ctx, progress)
        with suppress(StoreError):
            each_look()
        if not sight.log:
            ctx.clock.sleep(LOOK_EVERY_S)


def _stopped(ctx: Context) -> bool:
    """Whether the provider says that the box does not run any more."""
    attempt = ctx.attempt()
    if attempt is None or attempt.instance_id is None:
        return True
    try:
        row = ctx.cloud.instance(attempt.instance_id)
    except ProviderError:
        return False
    return row is None or row.state is InstanceState.STOPPED


def look_once(ctx: Context, shell: Shell, log: Path, progress: Progress) -> detached.Sight:
    """One look; what was printed is appended to the local copy of the log."""
    offset = log.stat().st_size if log.exists() else 0
    glob = ctx.recipe.watch.metrics
    sections = {"metrics": detached.tail_text(glob)} if glob else {}
    sight = detached.look(shell, "train", offset, sections, timeout_s=LOOK_S)
    if sight.log:
        with suppress(OSError), log.open("ab") as file:  # what a full disk cuts is read again
            file.write(sight.log)
    for line in _metrics(ctx.recipe, sight):
        progress.hear(line, ctx.clock.now())
    return sight


def holds(rule: str, said: Mapping[str, Any]) -> bool:
    """Whether `METRIC OP NUMBER` holds of the newest values; an unknown metric does not."""
    matched = _RULE.match(rule)
    if matched is None:
        return False
    name, op, number = matched.groups()
    value = _number(said.get(name))
    return value is not None and COMPARE[op](float(value), float(number))


def _number(value: object) -> int | float | None:
    """What a box says is a number only if it is a finite one of a sensible size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < MOST and value == value else None


def tail(log: Path, lines: int = 10) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return "(it printed nothing)"
    text = log.read_bytes()[-16384:].decode(errors="replace").replace("\r", "\n")
    return "\n".join(text.splitlines()[-lines:]) or "(it printed nothing)"


def _metrics(recipe: Recipe, sight: detached.Sight) -> list[dict[str, Any]]:
    if recipe.watch.pattern:
        found = re.finditer(recipe.watch.pattern, sight.log.decode(errors="replace"))
        return [_named(match.groupdict()) for match in found]
    lines = []
    for text in sight.sections.get("metrics", ()):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue  # half written, or nonsense
        if isinstance(line, dict):
            lines.append(line)
    return lines


def _named(groups: Mapping[str, str | None]) -> dict[str, Any]:
    """`total` is short for total_steps; numbers become numbers."""
    said: dict[str, Any] = {}
    for name, text in groups.items():
        if text is not None:
            said["total_steps" if name == "total" else name] = _parsed(text)
    return said


def _parsed(text: str) -> int | float | str:
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?", text):
        return float(text)
    return text


def _ended(recipe: Recipe, shell: Shell, exit_code: int, log: Path) -> str:
    if exit_code != 0:
        raise PhaseFailed(f"the training exited {exit_code}. Its last lines:\n{tail(log)}")
    assert recipe.train is not None
    missing = [glob for glob in recipe.train.expect if not boxfiles.matching(shell, [glob])]
    if missing:
        raise PhaseFailed(
            f"the training exited 0, but nothing matches train.expect {', '.join(missing)}. "
            f"Its last lines:\n{tail(log)}"
        )
    return "the training finished"


def _vanished(log: Path) -> str:
    return f"the training is gone without an exit code (killed?). Its last lines:\n{tail(log)}"


def _check_hang(ctx: Context, progress: Progress) -> None:
    if not (ctx.recipe.watch.metrics or ctx.recipe.watch.pattern):
        return
    still_s = (ctx.clock.now() - progress.moved_at).total_seconds()
    limit_s = float(ctx.recipe.watch.hang_minutes) * 60
    if still_s > limit_s:
        raise PhaseFailed(
            f"the training hangs: no step for {still_s / 60:.1f} minutes "
            f"(watch.hang_minutes {ctx.recipe.watch.hang_minutes})"
        )
