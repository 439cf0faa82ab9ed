"""`python -m gpurun.engine RUN [--takeover]`: the driver's process, always a detached one."""

import sys

from gpurun import settings as configuration
from gpurun.clock import SystemClock
from gpurun.engine.driver import drive
from gpurun.places import Places


def main(arguments: list[str]) -> int:
    run_id, *flags = arguments
    drive(
        run_id,
        Places.here(),
        configuration.load(),
        SystemClock(),
        may_rent="--takeover" not in flags,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
