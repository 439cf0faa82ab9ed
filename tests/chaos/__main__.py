"""`python -m tests.chaos`: play schedules, and say in one line what they came to."""

import argparse
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.judge import Verdict
from tests.chaos.playing import Result, play_all
from tests.chaos.schedule import Schedule, drawn, from_json
from tests.chaos.sweep import swept
from tests.chaos.withheld import withheld_s
from tests.chaos.worlds import worlds


def main(argv: list[str]) -> int:
    asked = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what has begun is ended by its block
    if asked.mutations:
        from tests.chaos.mutations import all_caught

        return 0 if all_caught(asked.only) else 1
    return 0 if _clean(_wanted(asked), asked) else 1


def _wanted(asked: argparse.Namespace) -> Iterable[Schedule]:
    if asked.replay is not None:
        return [from_json(asked.replay.read_text())]
    if asked.worlds:
        return [one for one in worlds(asked.provider) if asked.only in one.name]
    if asked.sweep:
        return [one for one in swept(asked.provider) if asked.only in one.name]
    numbers = range(asked.first, asked.first + asked.schedules)
    return [drawn(asked.seed, number, asked.provider) for number in numbers]


def _clean(schedules: Iterable[Schedule], asked: argparse.Namespace) -> bool:
    total, count, begun_s, withheld_before_s = Verdict(), 0, time.monotonic(), withheld_s()
    try:
        for result in play_all(schedules, asked.side_by_side):
            total, count = total.plus(result.verdict), count + 1
            if not result.verdict.clean:
                _show(result, asked)
            elif asked.verbose:
                print(f"# {result.seconds:.0f} s {result.schedule.name}", flush=True)
    finally:  # an hour that is interrupted has come to something too
        print(
            f"# {time.monotonic() - begun_s:.0f} s, of which the machine was not given "
            f"{withheld_s() - withheld_before_s:.0f} s; at its bound the latest end was "
            f"{total.latest_s:+.1f} s, the latest SIGTERM {total.told_s:+.1f} s"
        )
        print(total.line(count), flush=True)
    return total.clean


def _show(result: Result, asked: argparse.Namespace) -> None:
    """The seed and the schedule of a failure; `--replay` plays it again."""
    print(f"FAILED {result.schedule.name} (seed {asked.seed}, {result.seconds:.0f} s)")
    for sentence in result.verdict.found:
        print(f"  {sentence}")
    print(f"  {result.schedule.to_json()}", flush=True)
    if asked.verbose:
        print(result.logs, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the number of the first schedule")
    parser.add_argument("--provider", choices=("local", "vast", "prime"), default="local")
    parser.add_argument("--side-by-side", type=int, help="how many at once")
    parser.add_argument("--replay", type=Path, help="play the schedule of this file")
    parser.add_argument("--sweep", action="store_true", help="every crash point of a run")
    parser.add_argument("--worlds", action="store_true", help="with what else may be there")
    parser.add_argument("--mutations", action="store_true", help="each defect must be caught")
    parser.add_argument("--only", default="", help="of sweep, worlds, mutations, these alone")
    parser.add_argument("--verbose", action="store_true", help="name each schedule, show the logs")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
