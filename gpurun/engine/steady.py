"""A shell that waits for a line that is down, for what may safely be sent twice.

Every command of the engine is: a step is launched by `mkdir`, a marker is written again.  Every
file is, too: it is put in its place whole.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpurun.clock import Clock
from gpurun.errors import ProviderError
from gpurun.model import InstanceState
from gpurun.provider import Provisioner
from gpurun.shell import UNKNOWN_OUTCOME, Result, Shell

AGAIN_S = (0.5, 1.0, 2.0, 5.0)


class SteadyShell:
    """Asks again while the outcome is unknown, the box may still be there, and patience lasts."""

    def __init__(
        self,
        shell: Shell,
        cloud: Provisioner,
        instance_id: str,
        clock: Clock,
        patience_s: Callable[[], float],
    ) -> None:
        self._shell = shell
        self._cloud = cloud
        self._id = instance_id
        self._clock = clock
        self._patience_s = patience_s

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        """With `on_line` it is sent once: what was told cannot be taken back."""
        patience = _Patience(self._clock, self._patience_s(), self._known_gone)
        while True:
            result = self._shell.run(command, timeout_s=timeout_s, stdin=stdin, on_line=on_line)
            if result.exited != UNKNOWN_OUTCOME or on_line is not None or not patience.lasts():
                return result

    def put(self, source: Path, target: str) -> None:
        self._move(partial(self._shell.put, source, target))

    def get(self, source: str, target: Path) -> None:
        self._move(partial(self._shell.get, source, target))

    def _move(self, transfer: Callable[[], None]) -> None:
        patience = _Patience(self._clock, self._patience_s(), self._known_gone)
        while True:
            try:
                return transfer()
            except ConnectionError:
                if not patience.lasts():
                    raise

    def _known_gone(self) -> bool:
        """A provider that cannot be asked either says nothing: the fault may be on this side."""
        try:
            row = self._cloud.instance(self._id)
        except ProviderError:
            return False
        return row is None or row.state is InstanceState.STOPPED


class _Patience:
    """Between two tries: whether there is another one, after a while."""

    def __init__(self, clock: Clock, seconds: float, in_vain: Callable[[], bool]) -> None:
        self._clock = clock
        self._until_s = clock.boot_s() + seconds
        self._in_vain = in_vain
        self._tries = 0

    def lasts(self) -> bool:
        if self._clock.boot_s() >= self._until_s or self._in_vain():
            return False
        self._clock.sleep(AGAIN_S[min(self._tries, len(AGAIN_S) - 1)])
        self._tries += 1
        return True
