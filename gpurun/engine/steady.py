"""A shell that waits for a line that is down, for commands that may safely be sent twice.

Every command of the engine is one: a step is launched by `mkdir`, a marker is written again.
"""

from collections.abc import Callable
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
        give_up_s = self._clock.boot_s() + self._patience_s()
        tries = 0
        while True:
            result = self._shell.run(command, timeout_s=timeout_s, stdin=stdin, on_line=on_line)
            if result.exited != UNKNOWN_OUTCOME or on_line is not None:
                return result
            if self._clock.boot_s() >= give_up_s or self._known_gone():
                return result
            self._clock.sleep(AGAIN_S[min(tries, len(AGAIN_S) - 1)])
            tries += 1

    def put(self, source: Path, target: str) -> None:
        self._shell.put(source, target)

    def get(self, source: str, target: Path) -> None:
        self._shell.get(source, target)

    def _known_gone(self) -> bool:
        """A provider that cannot be asked either says nothing: the fault may be on this side."""
        try:
            row = self._cloud.instance(self._id)
        except ProviderError:
            return False
        return row is None or row.state is InstanceState.STOPPED
