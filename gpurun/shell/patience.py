"""The commands of one transfer, each repeated over new connections while bytes still move."""

from collections.abc import Callable, Iterable

from gpurun.clock import Deadline
from gpurun.shell import TIMED_OUT
from gpurun.shell.link import Link
from gpurun.shell.remote import Remote
from gpurun.shell.trouble import OutcomeUnknown, Unreachable

RETRY_S = 1.0
ON_ONE_CONNECTION = 0.5  # of the patience; the rest is for a new one


class Patience:
    """Bears a connection that breaks, for `stall_s` since the last byte.

    A box that cannot be reached at all is not waited for: nothing has moved yet.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._moved = False
        self._running: Remote | None = None
        self._until = self._for(1.0)

    def attempt(
        self,
        command: str,
        hear: Callable[[bytes], None],
        say: Iterable[bytes] | None = None,
        *,
        silent_s: float = 0.0,
    ) -> int | None:
        """Its exit code; None when it broke off, runs no more, and is worth another attempt.

        `silent_s` is how much longer than usual it may move nothing.  OSError: patience ended, or
        the login is refused.
        """
        try:
            return self._performed(Remote(self._link, command, hear, say, directory="/"), silent_s)
        except (Unreachable, OutcomeUnknown) as error:
            self.bear(error)
        return None

    def _performed(self, remote: Remote, silent_s: float) -> int:
        if self._running is not None and not self._running.kill():
            raise OutcomeUnknown("what a broken connection left on the box cannot be ended")
        self._running = remote
        stall_s = self._link.waits.stall_s * ON_ONE_CONNECTION + silent_s
        try:
            code = remote.perform(stall_s, while_it_moves=True)
        finally:
            if remote.moved:
                self._moved = True
                self._until = self._for(1 - ON_ONE_CONNECTION if remote.timed_out else 1.0)
        self._running = None
        if code == TIMED_OUT:
            raise OutcomeUnknown(f"no byte for {stall_s:.0f} s")
        return code

    def bear(self, trouble: Unreachable | OutcomeUnknown) -> None:
        """Return, after a while, if another attempt is due; else raise the trouble."""
        if isinstance(trouble, Unreachable) and not self._moved:
            raise trouble
        if self._until.passed():
            raise trouble

    def _for(self, share: float) -> Deadline:
        return Deadline(self._link.waits.stall_s * share, poll_s=RETRY_S)
