"""`python -m gpurun.engine RUN [--takeover]`: the driver's process, always a detached one."""

import sys

from gpurun import settings as configuration
from gpurun.engine.driver import drive
from gpurun.glance import agreed_clock
from gpurun.places import Places


def main(arguments: list[str]) -> int:
    run_id, *flags = arguments
    may_rent = "--takeover" not in flags
    settings = configuration.load() if may_rent else configuration.load_for_ending()[0]
    places = Places.here()
    drive(run_id, places, settings, agreed_clock(places.root), may_rent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
