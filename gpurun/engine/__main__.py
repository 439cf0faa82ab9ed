"""`python -m gpurun.engine RUN [--takeover]`: the driver's process, always a detached one."""

import sys

from gpurun import settings as configuration
from gpurun.clock import SystemClock
from gpurun.engine.driver import drive
from gpurun.places import Places


def main(arguments: list[str]) -> int:
    run_id, *flags = arguments
    may_rent = "--takeover" not in flags
    settings = configuration.load() if may_rent else configuration.load_for_ending()[0]
    drive(run_id, Places.here(), settings, SystemClock(), may_rent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
