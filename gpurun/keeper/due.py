"""Whether a box is due, also after a restart of this machine.

Within one boot a timer is held by the boot clock.  A later boot, and the black box, have the time
of day alone, and a machine that has just started may take any for it: then the provider is asked
first, whose answer brings its time (protocol 6).  While it does not answer, nothing could be ended.
"""

from collections.abc import Callable

from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper.charges import Charge
from gpurun.provider import Provisioner


class Due:
    """`has_answered`: whether this process has had an answer of a provider."""

    def __init__(
        self,
        cloud_of: Callable[[str], Provisioner],
        clock: Clock,
        has_answered: Callable[[str], bool],
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._has_answered = has_answered

    def fires(self, charge: Charge) -> bool:
        """T: of what is in doubt only once its end is past too, by both clocks: firing dates what
        is left of the time to collect by ours.
        """
        return self.ends(charge) if self.in_doubt(charge) else charge.fires(self._clock)

    def ends(self, charge: Charge) -> bool:
        """E."""
        if not charge.ends(self._clock) or not self.in_doubt(charge):
            return charge.ends(self._clock)
        by_provider = self._clock.dated()
        return by_provider is not None and by_provider >= charge.ends_at

    def in_doubt(self, charge: Charge) -> bool:
        """Whether only this machine says what time it is, and somebody who knows can be asked."""
        if self._clock.sure or charge.is_certain(self._clock):
            return False
        if not self._is_dated(charge.provider):
            return False
        tells_no_time = self._has_answered(charge.provider) and self._clock.dated() is None
        return not tells_no_time

    def _is_dated(self, provider: str) -> bool:
        try:
            return self._cloud_of(provider).traits.dated
        except GpurunError:  # no key for it yet: nor could anything be ended there
            return True
