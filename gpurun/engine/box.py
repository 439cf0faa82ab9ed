"""The phases that work on the box: boot, accept, ship, setup, data, verify, launch."""

import fnmatch
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property

from gpurun import push, ship, snapshot, wheels
from gpurun.engine import accept, boxfiles, detached, steps
from gpurun.engine.context import Context
from gpurun.engine.steady import SteadyShell
from gpurun.errors import PhaseFailed, UsageError
from gpurun.hardware import Hardware
from gpurun.model import Attempt
from gpurun.phases import (
    KEEP,
    PHASES,
    Command,
    Detached,
    Facts,
    Files,
    KeepWheel,
    ReuseWheel,
    Step,
    Upload,
)
from gpurun.provider import OverSsh
from gpurun.reach import shell_of
from gpurun.recipe import missing_secrets
from gpurun.rsync import Rsync
from gpurun.shell import TIMED_OUT, UNKNOWN_OUTCOME, Result, Shell
from gpurun.timers import ends_in_s, fires_in_s

LAST_LINES = 10
PATIENCE_S = 600.0
ENDING_PATIENCE_S = 30.0
MARK_S = 30.0


class Box:
    """One rented box, as the driver works with it."""

    def __init__(self, ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
        self._ctx = ctx
        self.attempt = attempt
        self._log = log
        self._hardware: Hardware | None = None

    @cached_property
    def line(self) -> Shell:
        """ProviderError while the provider cannot tell yet where the box answers."""
        assert self.attempt.instance_id is not None
        return shell_of(self._ctx.cloud, self.attempt.instance_id, self._ctx.places)

    @cached_property
    def shell(self) -> SteadyShell:
        """The same, for what may be sent twice."""
        assert self.attempt.instance_id is not None
        ctx = self._ctx
        return SteadyShell(
            self.line, ctx.cloud, self.attempt.instance_id, ctx.clock, self._patience_s
        )

    @property
    def secrets_file(self) -> str:
        """On tmpfs, so that a secret never reaches a disk."""
        return f"/dev/shm/{self.attempt.label}.env"

    def accept(self) -> None:
        seen = accept.look(self.shell, self._ctx.clock)
        self._hardware = seen.hardware
        self._log(seen.hardware.line())
        for check in accept.require(seen, self._ctx.recipe, self.attempt):
            self._log(f"[accept] {check.what}: {check.says}")
        self._check_secrets()

    def begin_task(self) -> None:
        """Make room for another recipe: its training is launched anew, what failed is tried anew.

        Once for each task, whoever drives it.
        """
        task = self._ctx.task
        self._run(
            f'[ "$(cat {KEEP}/task 2>/dev/null)" != {task} ] || exit 0\n'
            f"{detached.kill_text(push.NAME)}\n"
            f"rm -rf {KEEP}/train.* {KEEP}/push* {KEEP}/steps; echo {task} > {KEEP}/task",
            MARK_S,
            "make room for another recipe",
        )

    def perform(self, phase: str) -> None:
        """Every step of a phase, in order; the first that fails ends the phase.

        Data is made once for each box, code and digest of its steps.
        """
        steps_wanted = list(PHASES[phase](self._ctx.recipe, self._facts()))
        digest = _digest(steps_wanted, self._ctx.run.bundle_sha256)
        once = phase == "data" and bool(steps_wanted)
        if once and self._has_marker(phase, digest):
            self._log(f"[{phase}] done before on this box")
            return
        self._perform_all(phase, steps_wanted)
        if once:
            self._put_marker(phase, digest)

    def _perform_all(self, phase: str, wanted: Sequence[Step]) -> None:
        for index, step in enumerate(wanted):
            self._log(f"[{phase}] {step}")
            self._perform(phase, index, step)

    def _has_marker(self, what: str, digest: str) -> bool:
        """Whether the box itself says that this was finished, with this digest."""
        return self.shell.run(f'[ "$(cat {KEEP}/done-{what})" = {digest} ]', timeout_s=MARK_S).ok

    def _put_marker(self, what: str, digest: str) -> None:
        self.shell.run(f"mkdir -p {KEEP}; echo {digest} > {KEEP}/done-{what}", timeout_s=MARK_S)

    def _perform(self, phase: str, index: int, step: Step) -> None:
        match step:
            case Command(text, timeout_s):
                self._follow(phase, index, text, timeout_s, str(step))
            case Upload():
                self._upload(step)
            case ReuseWheel() | KeepWheel():
                self._wheel(step)
            case Files(path, pattern, count):
                self._count(path, pattern, count)
            case Detached(name, text):
                self._put_secrets()
                self._run(detached.launch_text(name, text, self.secrets_file), 60, "launch")

    def _follow(self, phase: str, index: int, text: str, timeout_s: float, says: str) -> None:
        name = steps.name_of(self._ctx.run.id, phase, index, text)
        clock = self._ctx.clock
        began_s = clock.boot_s()
        try:
            result = steps.perform(
                self.shell, name, text, timeout_s=timeout_s, clock=clock, on_line=self._log
            )
        except ConnectionError as error:
            result = Result(UNKNOWN_OUTCOME, str(error))
        except PhaseFailed as error:
            raise PhaseFailed(f"`{says}`: {error}") from error
        took = f"{clock.boot_s() - began_s:.1f} s"
        self._log(f"[{phase}] {took}")
        self._ctx.fact(
            lambda: self._ctx.journal.runs.event(
                self._ctx.run.id, "step", f"{phase}: {says}: {took}", self.attempt.label
            )
        )
        self._require_ok(result, timeout_s, says)

    def follow(self, phase: str, text: str, timeout_s: float, says: str) -> None:
        """A step beside those of the recipe's phases."""
        self._follow(phase, 0, text, timeout_s, says)

    def _run(self, text: str, timeout_s: float, says: str) -> None:
        self._require_ok(self.shell.run(text, timeout_s=timeout_s), timeout_s, says)

    def _require_ok(self, result: Result, timeout_s: float, says: str) -> None:
        if result.ok:
            return
        how = {
            TIMED_OUT: f"did not finish within {timeout_s / 60:.0f} minutes",
            UNKNOWN_OUTCOME: "lost its connection; its outcome is unknown",
        }.get(result.exited, f"exited {result.exited}")
        raise PhaseFailed(f"`{says}` {how}. Its last lines:\n{result.tail(LAST_LINES)}")

    def _upload(self, step: Upload) -> None:
        cargo = snapshot.kept(self._ctx.places.cargo(self._ctx.run.id))
        if cargo is None or cargo.digest != step.bundle_sha256:
            raise UsageError("what this run ships is not kept here any more; run `gpurun up` again")
        archives = self._ctx.places.run_dir(self._ctx.run.id)
        try:
            ship.bring(self.shell, cargo, archives, self._log, self._rsync())
        except OSError as error:
            raise PhaseFailed(f"the code did not arrive on the box: {error}") from error

    def _wheel(self, step: ReuseWheel | KeepWheel) -> None:
        perform = wheels.reuse if isinstance(step, ReuseWheel) else wheels.keep
        try:
            perform(self.shell, wheels.folder(self._ctx.places.root), self._log)
        except OSError as error:
            raise PhaseFailed(f"`{step}`: the wheel did not arrive: {error}") from error

    def _rsync(self) -> Rsync | None:
        cloud = self._ctx.cloud
        if not isinstance(cloud, OverSsh) or self.attempt.instance_id is None:
            return None
        return Rsync(cloud.login(self.attempt.instance_id), self._ctx.places.known_hosts)

    def _count(self, path: str, pattern: str, expected: int) -> None:
        found = [
            file.path
            for file in boxfiles.matching(self.shell, [f"{path}/{pattern}"])
            if fnmatch.fnmatch(file.path, f"{path}/{pattern}")
        ]
        self._log(f"{path}/{pattern}: {len(found)} found, {expected} expected")
        if len(found) != expected:
            listed = ", ".join(found[:5]) or "none"
            raise PhaseFailed(
                f"the dataset is not complete: {path}/{pattern} matches {len(found)} files "
                f"({listed}), data.verify.files expects {expected}. Training was not launched."
            )

    def _check_secrets(self) -> None:
        if missing := missing_secrets(self._ctx.recipe, self._ctx.secrets()):
            raise UsageError(f"secret {', '.join(missing)} is not set here; the box is ended")

    def _put_secrets(self) -> None:
        """Through stdin, just before the launch; the launched command removes the file.

        A training that was launched has them: nobody else needs them then.
        """
        wanted = self._ctx.recipe.secrets
        if not wanted or self.shell.run("[ -d .gpurun/train.started ]", timeout_s=30).ok:
            return
        self._check_secrets()
        known = self._ctx.secrets()
        values = [
            (s.name, known[s.name])
            for s in wanted
            if s.name in known and not push.is_credential(s.name)
        ]
        if not values:
            return
        put = self.shell.run(
            f"umask 077; cat > {self.secrets_file}", timeout_s=30, stdin=detached.exports(values)
        )
        if not put.ok:
            raise PhaseFailed(f"the secrets could not be put on the box: {put.tail(1)}")

    def forget_secrets(self) -> None:
        """Where a launch never came, they would lie on tmpfs after the box is gone."""
        self.shell.run(f"rm -f /dev/shm/{self.attempt.label}.*", timeout_s=10)

    def _patience_s(self) -> float:
        """How long a line may be down: no longer than the timer in force allows."""
        timer = self._ctx.journal.timers.of(self.attempt.label)
        if timer is None:
            return 0.0
        if timer.kind == "ending":  # what is not fetched now is lost; but the box bills
            return max(0.0, min(ENDING_PATIENCE_S, ends_in_s(timer, self._ctx.clock)))
        return max(0.0, min(PATIENCE_S, fires_in_s(timer, self._ctx.clock)))

    def _facts(self) -> Facts:
        if self._hardware is None:  # a takeover has not seen the box accepted
            self._hardware = accept.look(self.shell, self._ctx.clock).hardware
        return Facts(
            hardware=self._hardware,
            bundle_sha256=self._ctx.run.bundle_sha256,
            label=self.attempt.label,
            run_id=self._ctx.run.id,
            torch_cpu_index=self._ctx.settings.torch_cpu_index,
        )


def _digest(wanted: Sequence[Step], code: str) -> str:
    return hashlib.sha256(f"{wanted!r}{code}".encode()).hexdigest()
