"""What a box over SSH costs, beside plain tools in the same run: real sshd, a box of the tests.

`python -m benchmarks.ssh` as root, on a machine where the test boxes run (tests/boxes).  Wall time
where a user waits, medians, ours and the peer's by turns, so that a busy machine is busy for both.
"""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fabric

from gpurun.clock import SystemClock
from gpurun.provider import Login
from gpurun.shell.fabric import FabricShell
from tests.boxes import Box, box

COMMANDS = 60
COPIES = 3
COPY_MIB = 1024
CONNECTIONS = 100
IDLE_S = 30.0
COMMAND_MS = 15.0
WATCH_CORE_PERCENT, WATCH_MB = 10.0, 150.0

CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ok` is None where nothing was promised."""

    what: str
    ours: str
    peer: str = ""
    promise: str = ""
    ok: bool | None = None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ssh", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--mib", type=int, default=COPY_MIB, help="size of the copied file")
    wanted = parser.parse_args(arguments)
    print(f"{'':<44}{'gpurun':>16}{'beside':>28}   promised")
    missed = False
    for name, measure in MEASUREMENTS.items():
        if wanted.only and name not in wanted.only:
            continue
        with box() as rented, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for row in measure(rented, Path(folder), wanted.mib):
                verdict = {None: "", True: "kept", False: "MISSED"}[row.ok]
                print(f"{row.what:<44}{row.ours:>16}{row.peer:>28}   {row.promise:<24}{verdict}")
                missed |= row.ok is False
    return int(missed)


def commands(rented: Box, folder: Path, _: int) -> Iterator[Row]:
    """`true`, over a kept connection: ours, and Fabric as it comes."""
    shell = _shell(rented, folder)
    config = fabric.Config(overrides={"load_ssh_configs": False}, lazy=True)
    plain = fabric.Connection(
        rented.host,
        user=rented.user,
        port=rented.port,
        config=config,
        connect_kwargs={"key_filename": str(rented.key), "look_for_keys": False},
    )
    ours: list[float] = []
    peers: list[float] = []
    for _ in range(COMMANDS):
        ours.append(_wall_s(lambda: shell.run("true", timeout_s=30)) * 1000)
        peers.append(_wall_s(lambda: plain.run("true", hide=True, in_stream=False)) * 1000)
    plain.close()
    median = statistics.median(ours)
    yield Row(
        "a command, median of 60",
        f"{median:.1f} ms",
        f"Fabric {statistics.median(peers):.1f} ms",
        f"at most {COMMAND_MS:.0f} ms",
        median <= COMMAND_MS,
    )
    cpu_ms = _cpu_s(lambda: [shell.run("true", timeout_s=30) for _ in range(COMMANDS)]) * 1000
    yield Row("CPU here of a command", f"{cpu_ms / COMMANDS:.2f} ms")


def first_contact(rented: Box, folder: Path, _: int) -> Iterator[Row]:
    """From nothing to the end of the first command."""
    ours: list[float] = []
    peers: list[float] = []
    for _ in range(10):
        shell = _shell(rented, folder)
        ours.append(_wall_s(lambda: shell.run("true", timeout_s=30)) * 1000)  # noqa: B023
        shell.close()
        peers.append(_wall_s(lambda: rented.ssh("true")) * 1000)
    yield Row(
        "first contact and a command, median of 10",
        f"{statistics.median(ours):.0f} ms",
        f"ssh {statistics.median(peers):.0f} ms",
    )


def copies(rented: Box, folder: Path, mib: int) -> Iterator[Row]:
    """A large file from the box and to it, beside scp."""
    shell = _shell(rented, folder)
    rented.sh(f"head -c {mib}M /dev/urandom >/workspace/large")
    there, here = f"{rented.user}@{rented.host}:/workspace", folder / "large"
    scp = ["scp", "-q", *rented.ssh_options()]
    rates: dict[str, list[float]] = {"get": [], "scp get": [], "put": [], "scp put": []}
    work: dict[str, Callable[[], object]] = {
        "get": lambda: shell.get("large", here),
        "scp get": lambda: _run([*scp, f"{there}/large", str(here)]),
        "put": lambda: shell.put(here, "copy"),
        "scp put": lambda: _run([*scp, str(here), f"{there}/copy"]),
    }
    for _ in range(COPIES):
        for name, go in work.items():
            rates[name].append(mib * 1.048576 / _wall_s(go))
    said = shell.run("sha256sum <copy", timeout_s=120).output.split()[0]
    assert said == hashlib.sha256(here.read_bytes()).hexdigest()
    for way in ("get", "put"):
        median, peer = statistics.median(rates[way]), statistics.median(rates[f"scp {way}"])
        yield Row(
            f"{way} of {mib} MiB, median of {COPIES}",
            f"{median:.0f} MB/s",
            f"scp {peer:.0f} MB/s",
            "at least as fast" if way == "get" else "",
            median >= peer if way == "get" else None,
        )
    here.unlink()


def idle(rented: Box, folder: Path, _: int) -> Iterator[Row]:
    """Many kept connections in one process, and a command on each."""
    before_mb = _resident_mb()
    shells = [_shell(rented, folder, f"box-{number}") for number in range(CONNECTIONS)]
    for shell in shells:
        shell.connect()
    core_percent = _cpu_s(lambda: time.sleep(IDLE_S)) / IDLE_S * 100
    yield Row(
        f"{CONNECTIONS} idle connections",
        f"{core_percent:.2f} % of a core",
        "",
        f"at most {WATCH_CORE_PERCENT:.0f} %",
        core_percent <= WATCH_CORE_PERCENT,
    )
    resident_mb = _resident_mb()
    yield Row(
        f"memory of the process, {CONNECTIONS} of them in it",
        f"{resident_mb:.0f} MB",
        f"before {before_mb:.0f} MB",
        f"at most {WATCH_MB:.0f} MB",
        resident_mb <= WATCH_MB,
    )
    cpu_s = _cpu_s(lambda: [shell.run("true", timeout_s=30) for shell in shells])
    yield Row(f"CPU of a command on each of {CONNECTIONS}", f"{cpu_s * 1000:.0f} ms")
    for shell in shells:
        shell.close()


MEASUREMENTS: dict[str, Callable[[Box, Path, int], Iterator[Row]]] = {
    "commands": commands,
    "first_contact": first_contact,
    "copies": copies,
    "idle": idle,
}


def _shell(rented: Box, folder: Path, name: str = "box") -> FabricShell:
    at = ((rented.host, rented.port),)
    login = Login(name, rented.user, at, "/workspace", rented.key)
    return FabricShell(login, folder / "known_hosts")


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def _wall_s(work: Callable[[], object]) -> float:
    began_s = CLOCK.boot_s()
    work()
    return CLOCK.boot_s() - began_s


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
