"""How long `offers` takes over two clouds, beside the official clients against the same emulators.

`python -m benchmarks.offers` asks whether the slower cloud alone bounds the time, with slow
answers set at one; what a cloud that never answers costs; and what 500 offers cost to parse and
show.  The official clients' lines need `make clients`.  CPU is the client's, best of three; the
emulators run in processes of their own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun.keystore import store

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-clients" / "bin"
OFFERS = 600  # on the market; what is sold out or spot is not shown
SLOW_S = 1.0  # each answer; a market of several pages takes two
BEST_OF = 3
TARGETS = {"slower": 1.1, "cpu_s": 0.3, "unreachable_s": 5.0, "shown_ms": 100.0}
ASK = ("offers", "--gpu", "H100", "-n", "4")
SHOWN = """
import contextlib, io, time
from gpurun.clock import SystemClock
from gpurun import market, settings
from gpurun.model import Need
from gpurun.show.offers import offers_text
from gpurun.show.text import Look
known = settings.load()
rows = market.ask(["prime"], known, SystemClock(), lambda _: market.Wish(Need("H100", 4, 200)))
began = time.process_time()
answers = market.ask(["prime"], known, SystemClock(), lambda _: market.Wish(Need(None, 0, 20)))
found = [one for answer in answers for one in market.priced(answer, None)]
lines = offers_text(found, Look())
print(len(found), (time.process_time() - began) * 1000)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    wall_s: float


def main() -> int:
    emulators = [_emulator(name) for name in ("prime", "vast")]
    try:
        with tempfile.TemporaryDirectory() as home:
            return _measure(Path(home), *(where for _, where in emulators))
    finally:
        for process, _ in emulators:
            process.terminate()
            process.wait()


def _measure(home: Path, prime: Mapping[str, str], vast: Mapping[str, str]) -> int:
    store(home / "config.toml", "prime", prime["api_key"])
    store(home / "config.toml", "vast", vast["api_key"])
    ours = _ours(home, prime["url"], vast["url"])
    gpurun = [sys.executable, "-m", "gpurun.cli"]
    official = {"PRIME_DISABLE_VERSION_CHECK": "1", "VASTAI_NO_UPDATE_CHECK": "1"}
    official |= {"PRIME_API_KEY": prime["api_key"], "VAST_API_KEY": vast["api_key"], **ours}
    official = {k: v for k, v in official.items() if not k.startswith("GPURUN")}

    both = _best([*gpurun, *ASK], ours)
    _fault(prime, "slow", endpoint="search", seconds=SLOW_S)
    one = _best([*gpurun, *ASK, "--provider", "prime"], ours)
    slow = _best([*gpurun, *ASK], ours)
    _clear(prime)
    _fault(prime, "down", how="hang")
    dead = _best([*gpurun, *ASK], ours)
    _clear(prime)
    count, shown_ms = min(
        (_run([sys.executable, "-c", SHOWN], ours)[1].split() for _ in range(BEST_OF)),
        key=lambda words: float(words[1]),
    )
    rows = [
        ("gpurun offers, both clouds", both),
        (f"gpurun offers, prime alone, {SLOW_S:.0f} s slow", one),
        (f"gpurun offers, both, prime {SLOW_S:.0f} s slow", slow),
        ("gpurun offers, both, prime answers never", dead),
    ]
    for words in (
        ("vastai", "search", "offers", "num_gpus=4 gpu_name=H100_SXM"),
        ("prime", "availability", "list", "--gpu-type", "H100_80GB", "--gpu-count", "4"),
    ):
        if (CLIENTS / words[0]).exists():
            rows.append(
                (" ".join(words[:3]), _best([str(CLIENTS / words[0]), *words[1:]], official))
            )
    print(f"{'':44}  {'CPU s':>6}  {'wall s':>6}")
    for name, cost in rows:
        print(f"{name:44}  {cost.cpu_s:6.2f}  {cost.wall_s:6.2f}")
    print(f"{count} offers parsed and shown: {float(shown_ms):.0f} ms CPU")

    added_s = slow.cpu_s - one.cpu_s
    within = slow.wall_s <= one.wall_s * TARGETS["slower"] + TARGETS["cpu_s"]
    checks = [
        (within, f"both take {slow.wall_s / one.wall_s:.2f} of the slower one"),
        (added_s <= TARGETS["cpu_s"], f"the second cloud adds {added_s:.2f} s CPU"),
        (
            dead.wall_s - both.wall_s <= TARGETS["unreachable_s"],
            f"one that never answers costs {dead.wall_s - both.wall_s:.2f} s",
        ),
        (float(shown_ms) <= TARGETS["shown_ms"], f"{count} offers: {float(shown_ms):.0f} ms CPU"),
    ]
    for fine, says in checks:
        print(f"{'ok  ' if fine else 'MISS'}  {says}")
    return int(not all(fine for fine, _ in checks))


def _emulator(name: str) -> tuple["subprocess.Popen[str]", Mapping[str, str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clouds", name, "--offers", str(OFFERS)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a call that hangs is cut at the end, and said
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def _ours(home: Path, prime_url: str, vast_url: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPURUN_", "PRIME_", "VAST_"))}
    return kept | {
        "HOME": str(home),
        "GPURUN_HOME": str(home / "state"),
        "GPURUN_CONFIG": str(home / "config.toml"),
        "PRIME_API_BASE_URL": prime_url,
        "VAST_URL": vast_url,
        "COLUMNS": "400",
        "PYTHONPATH": str(ROOT),
    }


def _best(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    costs = [_run(command, environment)[0] for _ in range(BEST_OF)]
    return Cost(min(c.cpu_s for c in costs), min(c.wall_s for c in costs))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[Cost, str]:
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, env=dict(environment), stdout=printed, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began_s
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} exited {process.returncode}")
        printed.seek(0)
        return Cost(used.ru_utime + used.ru_stime, wall_s), printed.read()


def _fault(cloud: Mapping[str, str], name: str, **values: Any) -> None:
    _meter(cloud, "POST", {"name": name, **values})


def _clear(cloud: Mapping[str, str]) -> None:
    _meter(cloud, "DELETE", None)


def _meter(cloud: Mapping[str, str], method: str, body: Mapping[str, Any] | None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{cloud['meter_url']}/faults", data=data, method=method)
    with urllib.request.urlopen(request, timeout=10):
        pass


if __name__ == "__main__":
    sys.exit(main())
