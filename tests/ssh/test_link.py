"""The line to a box is cut, lossy, slow, reset or refused: the run goes on, nothing is done twice.

A line that heals within seconds and one that heals after a minute take the same way: each command
of the engine waits for the line as long as the timer in force allows, and is then sent again.
"""

import time
from collections.abc import Callable

import pytest

from tests.boxes import Proxy, box
from tests.homes import WAITS
from tests.hosts import BUILDS, LAUNCHES, Hosts, entry, left_on, run_root, training
from tests.ssh import table
from tests.ssh.conftest import Keep

pytestmark = pytest.mark.slow
CUTS = (("boot", "ship", "data", "train"), ("accept", "setup", "verify", "arm", "collect"))
DOWN_S = 2.5  # TCP asks again after 1, 3 and 7 s


@pytest.mark.parametrize("phases", CUTS, ids=", ".join)
def test_a_line_that_is_cut_in_a_phase_and_heals_ends_nothing(
    phases: tuple[str, ...], hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """With a round trip of 200 ms no phase is over before it is cut."""
    with box() as machine, Proxy(machine.host, machine.port, latency_s=0.1) as line:
        home = hosts_of()
        home.list_hosts([entry(machine, via=line)])
        run = home.begin(
            home.recipe(build=BUILDS, train=LAUNCHES), "--set", "setup.apt=[coreutils]"
        )
        for phase in phases:
            home.until_phase(run, phase)
            machine.cut()
            line.reset()
            time.sleep(DOWN_S)
            machine.heal()
        ended = home.finished(run)
        keep(table.of_run("root container", f"200 ms; line cut in {', '.join(phases)}", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.once_only(run), home.logs()
        assert left_on(machine) == []


@pytest.mark.parametrize(
    "phases", [("boot", "ship", "data"), ("accept", "train", "collect")], ids=", ".join
)
def test_an_sshd_that_refuses_for_a_while_ends_nothing(
    phases: tuple[str, ...], hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """Longer than any try lasts: whoever waits for 8 s has begun to ask every 5 s, and goes on."""
    with box() as machine, Proxy(machine.host, machine.port, latency_s=0.1) as line:
        home = hosts_of()
        home.list_hosts([entry(machine, via=line)])
        run = home.begin(home.recipe(build=BUILDS, train=LAUNCHES))
        for phase in phases:
            home.until_phase(run, phase)
            machine.refuse()
            line.reset()
            time.sleep(8)
            machine.accept()
        ended = home.finished(run)
        keep(table.of_run("root container", f"sshd refuses 8 s in {', '.join(phases)}", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.once_only(run), home.logs()
        assert left_on(machine) == []


def test_an_sshd_that_refuses_for_a_minute_ends_nothing(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(build=f"{BUILDS}; sleep 2", train=LAUNCHES))
        home.until_phase(run, "data")
        machine.refuse()
        machine.reset_connections()
        time.sleep(60)
        machine.accept()
        ended = home.finished(run)
        keep(table.of_run("root container", "sshd refuses 60 s in data", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.once_only(run), home.logs()


def test_a_line_that_loses_every_tenth_packet_ends_nothing(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        machine.loss(10)
        run = home.begin(home.recipe(build=BUILDS, train=LAUNCHES))
        ended = home.finished(run)
        machine.loss(0)
        keep(table.of_run("root container", "10 % loss", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.once_only(run), home.logs()
        assert left_on(machine) == []


def test_another_host_key_in_mid_run_stops_it_and_nothing_is_sent(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """Until a human says why it changed, the run cannot be proven ended: that is exit 10.

    The keeper watches it by then: it sees the other key, and calls the driver that stops the run.
    """
    with box() as machine:
        home = hosts_of(machine)
        home.env["GPURUN_LEAVE_AFTER_MINUTES"] = "0"
        run = home.begin(home.recipe(train=WAITS))
        home.until_phase(run, "train")
        home.until(lambda: "the keeper watches it" in home.logs())
        machine.change_host_key()
        machine.reset_connections()
        logins = machine.log().count("Accepted publickey")
        home.until(lambda: home.state(run) == "still_billing", 120)
        document = home.document(run)
        keep(table.of_run("root container", "host key changed in train", document))
        pinned = home.places.known_hosts / f"ssh-{machine.host}-22"
        assert document["exit_code"] == 10
        for words in ("the host key of", "changed", "nothing was sent to it", f"`rm {pinned}`"):
            assert words in document["error"], document["error"]
        assert machine.log().count("Accepted publickey") == logins
        pinned.unlink()  # as the message says
        ended = home.finished(run)
        assert ended["state"] == "failed"
        assert ended["exit_code"] in (4, 5)  # whether the provider or the box was asked first
        assert left_on(machine) == []


def test_a_kill_while_the_line_is_down_is_done_when_it_is_back(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=WAITS))
        home.until_phase(run, "train")
        home.until(lambda: (run_root(machine) / "out/result.txt").exists())
        machine.refuse()
        machine.reset_connections()
        killing = home.start("kill", run, "--yes")
        home.until(lambda: home.phase(run) == "destroy")
        assert home.state(run) == "active"
        machine.accept()
        ended = home.finished(run)
        assert killing.wait(60) == 0
        killing.communicate()
        keep(table.of_run("root container", "killed while the line was down", ended))
        assert (ended["state"], ended["exit_code"]) == ("killed", 7)
        assert left_on(machine) == []
        kept = machine.root / "workspace/kept"
        assert [path.read_text() for path in kept.rglob("result.txt")] == ["42\n"]


def test_a_timer_that_fires_while_the_line_is_down_ends_the_processes_on_the_box(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """The fuse counts by the box's uptime, which the test then moves on by its margin."""
    with box() as machine:
        machine.sh("cat /proc/uptime > /run/uptime; mount --bind /run/uptime /proc/uptime")
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=WAITS, run_minutes=0.1, grace_minutes=0.1))
        home.until_phase(run, "train")
        home.until(lambda: (run_root(machine) / "out/result.txt").exists())
        machine.cut()
        home.until(lambda: home.reason(run).startswith("the run timer fired"))
        assert training(machine, WAITS)
        now_s = float((machine.root / "run/uptime").read_text().split()[0])
        (machine.root / "run/uptime").write_text(f"{now_s + 12 + 120:.2f} 0.00\n")
        home.until(lambda: not training(machine, WAITS), 30)
        assert (run_root(machine) / "out/result.txt").exists()
        machine.heal()
        ended = home.finished(run)
        keep(table.of_run("root container", "line cut when the timer fires", ended))
        assert (ended["state"], ended["exit_code"]) == ("deadline", 6)
        assert left_on(machine) == []
