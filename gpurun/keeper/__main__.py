"""`python -m gpurun.keeper`: a parent of a few lines, and the keeper itself.

The parent starts the keeper again when it is killed or fails; it ends when the keeper was told to.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from types import FrameType

from gpurun.keeper import FEW_ARENAS
from gpurun.keeper.serve import LOCKED, STOPPED, serve

AGAIN_AFTER_S = 0.05
AGAIN_IF_YOUNG_S = 0.5  # one that dies as soon as it lives is not started without a pause
YOUNG_S = 5.0


def parent() -> int:
    from gpurun.clock import SystemClock

    clock = SystemClock()
    while True:
        began_s = clock.boot_s()
        child = subprocess.Popen(
            [sys.executable, "-m", "gpurun.keeper", "--child"], env=os.environ | FEW_ARENAS
        )

        signal.signal(signal.SIGTERM, partial(_forward, child))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if child.wait() in (STOPPED, LOCKED, -signal.SIGTERM):  # told, perhaps before it could hear
            return max(STOPPED, child.returncode)
        lived_s = clock.boot_s() - began_s
        clock.sleep(AGAIN_AFTER_S if lived_s > YOUNG_S else AGAIN_IF_YOUNG_S)


def _forward(child: "subprocess.Popen[bytes]", number: int, _frame: FrameType | None) -> None:
    child.send_signal(number)


if __name__ == "__main__":
    if "--child" in sys.argv:
        sys.exit(serve())
    sys.exit(parent())
