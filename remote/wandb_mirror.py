"""Copies metrics.jsonl to wandb: python -m remote.wandb_mirror, started by the training.

A process of its own, so that nothing that wandb or its server does can hold up the training.  It is
told what to copy by one line of JSON on its standard input; the end of that input is the end of the
training, however it came.
"""

import json
import os
import select
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FAREWELL_S = 30  # for what is not sent yet when the training has ended
WAIT_S = 20.0  # for a server's first answer; WANDB_INIT_TIMEOUT says otherwise
LOOK_EVERY_S = 1.0
GATEWAY_ERRORS = range(502, 505)  # the answer of a proxy that reaches no server


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to the whole group: the training saves
        signal.signal(number, signal.SIG_IGN)
    job = json.loads(sys.stdin.readline())
    try:
        run = _start(job)
    except Exception as error:  # whatever wandb raises, the run is worth more
        _say(f"wandb is off: {error}; metrics.jsonl goes on")
        return
    for line in _lines(Path(job["metrics"]), job["from_byte"]):
        step = line.pop("step", None)
        run.log({key: value for key, value in line.items() if key != "event"}, step=step)
    run.finish()
    sys.stdout.flush()
    os._exit(0)  # all is sent or on disk; wandb's own ending may wait for a server once more


def _start(job: dict[str, Any]) -> Any:
    import wandb

    wait_s = float(os.environ.get("WANDB_INIT_TIMEOUT", WAIT_S))
    settings = {"init_timeout": wait_s, "x_stats_pid": os.getppid()}
    kept_in = os.environ.get("WANDB_DIR", str(Path(job["metrics"]).parent))
    if os.environ.get("WANDB_MODE") != "offline":
        try:
            _require_answer(wandb.setup().settings.base_url, wait_s)
            run = wandb.init(**job["run"], dir=kept_in, settings=settings)
        except Exception as error:
            _say(f"wandb: {error}; going on offline")
        else:
            _say(f"wandb: {run.url or 'offline'}")
            return run
    run = wandb.init(**job["run"], dir=kept_in, settings=settings, mode="offline")
    _say(f"wandb: offline; `wandb sync {Path(run.dir).parent}` sends it later")
    return run


def _require_answer(address: str, wait_s: float) -> None:
    """A server that swallows what it is sent would be waited for much longer by wandb itself."""
    try:
        urllib.request.urlopen(address, timeout=wait_s).close()
    except urllib.error.HTTPError as error:
        if error.code in GATEWAY_ERRORS:
            raise ConnectionError(f"{address} answers {error.code}") from error
    except OSError as error:
        raise ConnectionError(f"no answer from {address}: {error}") from error


def _lines(path: Path, from_byte: int) -> Iterator[dict[str, Any]]:
    """Whole lines, as they are written; those written before the end of the training too."""
    with path.open("rb") as file:
        file.seek(from_byte)
        ended = False
        rest = b""
        while True:
            rest += file.read()
            *whole, rest = rest.split(b"\n")
            yield from map(json.loads, whole)
            if ended:
                return
            if ended := bool(select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]):
                signal.alarm(FAREWELL_S)  # ends this process if wandb does not


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
