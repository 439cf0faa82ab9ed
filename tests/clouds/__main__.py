"""A cloud as a process of its own: `python -m tests.clouds vast --port 0`.

Prints one line of JSON, {"url", "api_key", "meter_url"}, and runs until it is told to stop or its
parent is gone; its boxes end with it.
"""

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from tests.boxes import sweep
from tests.clouds.clock import Clock
from tests.clouds.providers import PROVIDERS
from tests.clouds.real import CONTAINER, RealBoxes
from tests.clouds.serve import CREDIT_USD, cloud

LOOK_S = 0.5


def main(argv: list[str]) -> int:
    asked = _parser().parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    parent = os.getppid()
    sweep()
    template = replace(
        CONTAINER,
        base=asked.base,
        network="internet" if asked.internet else "none",
        share=tuple(asked.share),
    )
    with cloud(
        asked.provider,
        boxes=RealBoxes(template),
        clock=Clock(rate=asked.rate),
        credit_usd=asked.credit_usd,
        offers=asked.offers,
        port=asked.port,
    ) as running:
        where = {"url": running.url, "api_key": running.api_key, "meter_url": running.meter_url}
        print(json.dumps(where), flush=True)
        while not stop.wait(LOOK_S) and os.getppid() == parent:
            pass
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.clouds", description=__doc__)
    parser.add_argument("provider", choices=sorted(PROVIDERS))
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0 takes a free one")
    parser.add_argument("--rate", type=float, default=1.0, help="cloud seconds in a real one")
    parser.add_argument("--credit-usd", type=Decimal, default=CREDIT_USD)
    parser.add_argument("--offers", type=int, help="widen the market to this many")
    parser.add_argument("--base", choices=("host", "minbase"), default="host")
    parser.add_argument("--internet", action="store_true", help="boxes reach package registries")
    parser.add_argument("--share", type=Path, action="append", default=[], help="seen in boxes")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
