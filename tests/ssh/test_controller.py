"""What controls a run is killed or sleeps: the run goes on, and is taken up where it stands."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from gpurun import keeper
from gpurun.locks import holder
from tests.boxes import Proxy, box
from tests.homes import WAITS
from tests.hosts import BUILDS, LAUNCHES, Hosts, entry, left_on, run_root, training
from tests.ssh import table
from tests.ssh.conftest import Keep

pytestmark = pytest.mark.slow
BY_KEEPER = ("boot", "data", "collect", "destroy")
BY_HAND = ("accept", "ship", "setup", "verify", "arm", "train")


def kill_driver(home: Hosts, run: str) -> None:
    pid = holder(home.places.run_lock(run))
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    home.until(lambda: holder(home.places.run_lock(run)) != pid, 10)


@pytest.mark.parametrize("phases", [BY_KEEPER, BY_HAND], ids=", ".join)
def test_a_driver_that_is_killed_in_a_phase_is_replaced(
    phases: tuple[str, ...], hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """By the keeper alone, or at once by `resume`; with 200 ms no phase is over before."""
    with box() as machine, Proxy(machine.host, machine.port, latency_s=0.1) as line:
        home = hosts_of()
        home.list_hosts([entry(machine, via=line)])
        run = home.begin(
            home.recipe(build=BUILDS, train=LAUNCHES), "--set", "setup.apt=[coreutils]"
        )
        for phase in phases:
            home.until_phase(run, phase)
            kill_driver(home, run)
            if phases is BY_HAND:
                done = home.run("resume", run, "-d")
                assert done.returncode == 0, done.stderr
        ended = home.finished(run)
        how = "resumed" if phases is BY_HAND else "taken over"
        keep(table.of_run("root container", f"driver killed in {', '.join(phases)}: {how}", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.once_only(run), home.logs()
        assert left_on(machine) == []


def test_with_the_lid_closed_the_run_goes_on_and_its_log_is_whole_later(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """Everything here is stopped, then dead; `logs -f` from a later moment misses nothing."""
    train = "mkdir -p out; i=0; until [ -e go ]; do i=$((i + 1)); echo line $i; sleep 0.2; done\n"
    train += "echo $i > out/result.txt; echo last"
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=train))
        home.until(lambda: (run_root(machine) / "logs/train.log").stat().st_size > 0)
        home.signal_all(signal.SIGSTOP)
        time.sleep(3)
        while home.processes():
            home.signal_all(signal.SIGKILL)
        time.sleep(3)
        log = run_root(machine) / "logs/train.log"
        before = len(log.read_text().splitlines())
        assert before > 15
        following = home.start("logs", run, "-f")
        here = home.places.run_dir(run) / "train.log"
        home.until(lambda: len(here.read_text().splitlines()) > before)
        (run_root(machine) / "go").touch()
        said, trouble = following.communicate(timeout=90)
        assert following.returncode == 0, trouble
        lines = [line for line in said.splitlines() if line.startswith(("line ", "last"))]
        ended = home.finished(run)
        keep(table.of_run("root container", "laptop closed in train, killed", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        count = int(home.fetched(run, "out/result.txt"))
        assert lines == [*(f"line {i}" for i in range(1, count + 1)), "last"]
        assert left_on(machine) == []


def test_the_timer_holds_when_keeper_and_driver_are_killed(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """Nobody here lives: the fuse on the box ends the processes; any command then ends the run."""
    with box() as machine:
        machine.sh("cat /proc/uptime > /run/uptime; mount --bind /run/uptime /proc/uptime")
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=WAITS, run_minutes=0.2, grace_minutes=0.1))
        home.until(lambda: (run_root(machine) / "out/result.txt").exists())
        while home.processes():
            home.signal_all(signal.SIGKILL)
        uptime = machine.root / "run/uptime"
        now_s = float(uptime.read_text().split()[0])
        uptime.write_text(f"{now_s + 12 + 6 + 120:.2f} 0.00\n")
        home.until(lambda: not training(machine, WAITS), 40)
        assert keeper.running(home.places) is None
        home.run("status")
        ended = home.finished(run)
        keep(table.of_run("root container", "keeper and driver killed in train", ended))
        assert ended["exit_code"] in (5, 6), ended["error"]
        kept = (machine.root / "workspace/kept").glob("*/out/result.txt")
        here = home.work / "runs" / run / "out/result.txt"
        [result, *_] = [path for path in (here, *kept) if path.exists()]  # if its end came first
        assert result.read_text() == "42\n"
        assert left_on(machine) == []
