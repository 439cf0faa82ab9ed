"""What a container runs when it starts: the fuse, before anybody can log in, on real boxes."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpurun import fuse
from gpurun.clock import SystemClock
from gpurun.model import Order
from gpurun.shell.fabric import FabricShell
from gpurun.timers import timer_for
from provisioners.vast import Vast, onstart, renting
from tests.clouds.serve import Cloud, cloud
from tests.contract import LABEL
from tests.provisioners.vast.conftest import START, adapter
from tests.provisioners.vast.test_vast import order

HOME = f"{Vast.root}/.gpurun/fuse"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "x" * 43 + " somebody@somewhere"


def wanted(vast: Vast, **more: object) -> Order:
    text = fuse.script(HOME, LABEL, vast.self_destroy(""), "touch terminated", 0, 0)
    return replace(order(vast), fuse_script=text, **more)


# What is sent.


def test_it_fits_with_the_whole_fuse_and_several_keys(vast: Vast) -> None:
    body = renting.request(wanted(vast), [KEY, KEY.replace("x", "y")], START)
    assert len(body["onstart"]) <= onstart.ONSTART_MOST
    assert body["onstart"].count("ssh-ed25519") == 2
    assert all(len(f"{name}={value}") <= 256 for name, value in body["env"].items())


def test_nothing_that_the_host_can_read_holds_a_secret(market: Cloud, vast: Vast) -> None:
    sent = json.dumps(renting.request(wanted(vast), [KEY], START), default=str)
    assert market.api_key not in sent
    made = vast.create(wanted(vast))
    assert len(made.box_key) == 64
    row = json.dumps(market.world.find(made.instance_id).env)
    assert made.box_key not in row + repr(made)


def test_of_too_many_keys_those_that_fit_are_let_in(vast: Vast) -> None:
    keys = [f"ssh-rsa {n:03}{'A' * 700} k" for n in range(9)]
    text = renting.request(wanted(vast), keys, START)["onstart"]
    assert len(text) <= onstart.ONSTART_MOST
    assert "ssh-rsa 000" in text
    assert "ssh-rsa 008" not in text
    assert "fuse.sh arm 1" in text


def test_the_time_it_gives_is_that_of_the_setup_timer(vast: Vast) -> None:
    text = renting.request(wanted(vast), [], START)["onstart"]
    ends_s = int((START + timedelta(minutes=41)).timestamp())
    assert f"arm 1 {ends_s - 60} {ends_s} $left $now" in text
    assert f"-le {41 * 60 + 60} ]" in text


# On a box.


@pytest.fixture
def real() -> Iterator[Cloud]:
    with cloud("vast") as running:
        yield running


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def rented(real: Cloud, clock: SystemClock, key: Path, tmp_path: Path) -> "Rented":
    vast = adapter(real, clock, public_keys=[key.with_suffix(".pub").read_text()])
    ends_at = datetime.now(UTC) + timedelta(minutes=30)
    bought = wanted(vast, fires_at=ends_at - timedelta(minutes=1), ends_at=ends_at)
    return Rented(real, vast, vast.create(bought).instance_id, key, tmp_path)


class Rented:
    """One box whose fuse nobody but onstart has armed."""

    def __init__(self, real: Cloud, vast: Vast, number: str, key: Path, folder: Path) -> None:
        self.real, self.vast, self.id = real, vast, number
        self._key, self._folder = key, folder

    def shell(self) -> FabricShell:
        within(15, lambda: self.real.world.find(self.id).status == "running")
        login = replace(self.vast.login(self.id), key=self._key)
        shell = FabricShell(login, self._folder / "known")
        within(15, lambda: shell.run(f"[ -e {HOME}/fuse.beat ]", timeout_s=10).ok)
        return shell


def within(seconds: float, true: object) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.1)


@pytest.mark.box
def test_the_fuse_holds_the_setup_timer_before_anybody_has_logged_in(rented: Rented) -> None:
    state = fuse.read_back(rented.shell(), HOME)
    assert state is not None
    assert state.holds(1)


@pytest.mark.box
def test_the_rehearsal_is_heard_and_ends_nothing(rented: Rented) -> None:
    shell = rented.shell()
    assert shell.run(rented.vast.rehearsal(rented.id), timeout_s=60).ok
    assert not shell.run(rented.vast.rehearsal("4711"), timeout_s=60).ok, "another box's"
    rented.real.fault("container_key_dead")
    assert not shell.run(rented.vast.rehearsal(rented.id), timeout_s=60).ok
    rented.real.clear()
    rented.real.fault("auth_404")
    assert not shell.run(rented.vast.rehearsal(rented.id), timeout_s=60).ok
    assert rented.real.meter().alive == 1


@pytest.mark.box
def test_it_ends_its_own_box_with_the_account_keys_gone(rented: Rented, clock: SystemClock) -> None:
    shell = rented.shell()
    rented.real.fault("key_revoked")
    now = clock.now()
    timer = timer_for(LABEL, 2, "run", now, now + timedelta(seconds=1), clock)
    text = {"self_destroy": rented.vast.self_destroy(rented.id), "terminate": ":"}
    fuse.arm(shell, HOME, timer, clock, **text, margin_s=0, term_delay_s=0)
    within(20, lambda: rented.real.meter().alive == 0)


@pytest.mark.box
def test_a_restarted_container_keeps_its_deadline(rented: Rented, clock: SystemClock) -> None:
    """onstart runs again; what the fuse was told last stands, with the time that is left."""
    shell = rented.shell()
    ends_at = clock.now() + timedelta(hours=3)
    timer = timer_for(LABEL, 7, "run", ends_at - timedelta(minutes=5), ends_at, clock)
    text = {"self_destroy": rented.vast.self_destroy(rented.id), "terminate": ":"}
    fuse.arm(shell, HOME, timer, clock, **text, margin_s=0, term_delay_s=0)
    rented.real.fault("container_restart")

    def again() -> bool:
        state = fuse.read_back(shell, HOME)
        return state is not None and state.holds(7)

    within(20, again)
    assert rented.real.meter().alive == 1


@pytest.mark.box
def test_a_deadline_that_passed_before_a_restart_is_not_counted_anew(
    real: Cloud, clock: SystemClock, key: Path, tmp_path: Path
) -> None:
    vast = adapter(real, clock, public_keys=[key.with_suffix(".pub").read_text()])
    past = clock.now() - timedelta(minutes=1)
    number = vast.create(wanted(vast, fires_at=past, ends_at=past)).instance_id
    rented = Rented(real, vast, number, key, tmp_path)
    rented.shell()
    assert real.meter().alive == 1, "at its first start it has five minutes"
    real.fault("container_restart")
    within(30, lambda: real.meter().alive == 0)


@pytest.mark.box
@pytest.mark.parametrize("fault", ["auth_404", "container_key_dead", "server_error", "html"])
def test_a_box_that_was_not_heard_knows_that_it_lives(rented: Rented, fault: str) -> None:
    """404 too: its fuse goes on trying."""
    shell = rented.shell()
    rented.real.fault(fault)
    assert not shell.run(rented.vast.self_destroy(rented.id), timeout_s=60).ok
    assert rented.real.meter().alive == 1
    rented.real.clear()
    shell.run(rented.vast.self_destroy(rented.id), timeout_s=60)
    within(10, lambda: rented.real.meter().alive == 0)


@pytest.mark.box
def test_no_key_is_in_any_argument_of_a_command(rented: Rented) -> None:
    shell = rented.shell()
    secret = rented.real.world.find(rented.id).api_key
    traced = f"set -x\n{rented.vast.rehearsal(rented.id)}"
    said = shell.run(traced, timeout_s=60).output
    commands = [line for line in said.splitlines() if line.lstrip("+ ").startswith(("curl", "sed"))]
    assert commands
    assert not any(secret in line for line in commands)


@pytest.mark.box
def test_python_ends_a_box_that_has_no_curl(rented: Rented) -> None:
    shell = rented.shell()
    tools = "sh tr sed cat python3"
    few = f"mkdir /tmp/few; for t in {tools}; do ln -s $(command -v $t) /tmp/few/; done\n"
    without = f"{few}PATH=/tmp/few; ! command -v curl || exit 9\n"
    assert shell.run(without + rented.vast.rehearsal(rented.id), timeout_s=60).ok
    shell.run("PATH=/tmp/few\n" + rented.vast.self_destroy(rented.id), timeout_s=60)
    within(10, lambda: rented.real.meter().alive == 0)


@pytest.mark.box
def test_a_box_that_is_cut_off_learns_it_from_the_rehearsal(real: Cloud, rented: Rented) -> None:
    """Not armed, then: such a box would bill until somebody else ends it."""
    real.fault("box_cut_off")
    assert not rented.shell().run(rented.vast.rehearsal(rented.id), timeout_s=90).ok
