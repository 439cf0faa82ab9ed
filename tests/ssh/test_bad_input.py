"""Hosts that cannot be worked on: one clear sentence each, nothing rented, nothing left there."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.boxes import Box, Shape, box, make_key, ssh_agent
from tests.boxes.shape import TMUX_RC
from tests.homes import WAITS
from tests.hosts import Hosts, entry, left_on, run_root, training
from tests.ssh import table
from tests.ssh.conftest import Keep

Try = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def machine() -> Iterator[Box]:
    """Nobody is let in with what a test gives, so that one box serves them all."""
    with box() as made:
        yield made


@pytest.fixture
def tried(hosts_of: Callable[..., Hosts], keep: Keep) -> Try:
    """`up` on a host of this entry, which must be refused before anything is rented."""

    def up(
        on: Box,
        fault: str,
        *entries: str,
        shape: str = "root container",
        words: tuple[str, ...] = (),
    ) -> "subprocess.CompletedProcess[str]":
        home = hosts_of()
        home.list_hosts(entries)
        began_s = time.monotonic()
        where = words or ("--provider", "ssh")
        done = home.run("up", home.recipe(), "--yes", *where)
        keep(table.of_command(shape, fault, done, time.monotonic() - began_s))
        assert "Traceback" not in done.stderr
        assert home.rentals() == 0
        assert left_on(on) == []
        return done

    return up


def test_a_user_that_is_not_admitted(machine: Box, tried: Try) -> None:
    done = tried(machine, "wrong user", entry(machine, user="nobody"))
    assert done.returncode == 4
    assert f"does not admit user nobody with key {machine.key}" in done.stderr
    assert f"`ssh -i {machine.key} -p 22 nobody@{machine.host}` must work first" in done.stderr


def test_a_key_that_is_not_admitted(machine: Box, tried: Try, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    done = tried(machine, "wrong key", entry(machine, key=str(other)))
    assert done.returncode == 4
    assert f"does not admit user root with key {other}" in done.stderr


def test_a_key_that_is_not_there(machine: Box, tried: Try, tmp_path: Path) -> None:
    done = tried(machine, "no such key", entry(machine, key=str(tmp_path / "none")))
    assert done.returncode == 4
    assert "none does not exist: name another, or make it with `ssh-keygen" in done.stderr


def test_a_key_with_a_passphrase_and_no_agent(machine: Box, tried: Try, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "secret words")
    done = tried(machine, "passphrase, no agent", entry(machine, key=str(locked)))
    assert done.returncode == 4
    assert f"no agent holds it: run `ssh-add {locked}`" in done.stderr


def test_a_key_with_a_passphrase_that_an_agent_holds_works(
    machine: Box, hosts_of: Callable[..., Hosts], tmp_path: Path
) -> None:
    locked = make_key(tmp_path / "locked", "secret words")
    machine.authorise(locked)
    with ssh_agent(tmp_path) as agent:
        agent.add(locked, "secret words")
        home = hosts_of()
        home.list_hosts([entry(machine, key=str(locked))])
        home.env |= agent.environment
        done = home.run("up", home.recipe(), "--provider", "ssh", "--dry-run")
        assert done.returncode == 0, done.stderr


def test_a_host_that_no_name_server_knows(machine: Box, tried: Try) -> None:
    done = tried(machine, "unknown host", entry(machine, host="no-such-host.invalid"))
    assert done.returncode == 4
    assert "no-such-host.invalid:22 cannot be looked up" in done.stderr
    assert "check host and port" in done.stderr


def test_a_port_that_is_closed(machine: Box, tried: Try) -> None:
    closed = entry(machine).replace("port = 22", "port = 2222")
    done = tried(machine, "port closed", closed)
    assert done.returncode == 4
    assert f"nothing listens at {machine.host}:2222 (connection refused)" in done.stderr
    assert "check the port" in done.stderr


def test_a_host_that_is_listed_twice(machine: Box, tried: Try) -> None:
    done = tried(machine, "host listed twice", entry(machine), entry(machine, usd_per_hour="1"))
    assert done.returncode == 2
    assert f"ssh_hosts lists root@{machine.host}:22 twice" in done.stderr


def test_a_host_option_that_names_no_host(machine: Box, tried: Try) -> None:
    done = tried(machine, "--host without a host", entry(machine), words=("--host", "root@:22"))
    assert done.returncode == 2
    assert "--host user@host:port" in done.stderr


def test_a_host_option_with_a_misspelt_name(machine: Box, tried: Try) -> None:
    words = ("--host", "root@no-such-host.invalid:22")
    done = tried(machine, "--host misspelt", entry(machine), words=words)
    assert done.returncode == 4
    assert "no-such-host.invalid:22 cannot be looked up" in done.stderr


def test_a_host_option_without_a_user_is_the_listed_login(hosts_of: Callable[..., Hosts]) -> None:
    with box(Shape(user="ubuntu")) as machine:
        home = hosts_of(machine)
        done = home.run("up", home.recipe(), "--host", machine.host, "--dry-run")
        assert done.returncode == 0, done.stderr
        assert f"ssh:ubuntu@{machine.host}:22" in done.stdout


def test_no_host_at_all(machine: Box, tried: Try) -> None:
    done = tried(machine, "no hosts in the settings")
    assert done.returncode == 2
    assert "list them as ssh_hosts in the settings" in done.stderr


def test_a_host_that_another_controller_holds(
    machine: Box, hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    held = "var/tmp/gpurun"
    machine.sh(f"mkdir /{held}; echo gpurun-other-run-1 > /{held}/label")
    machine.sh(f"printf '%s\\n' 1 {int(time.time()) + 600} 0 none /x > /{held}/facts")
    try:
        home = hosts_of(machine)
        began_s = time.monotonic()
        done = home.run("up", home.recipe(), "--yes", "--provider", "ssh")
        seconds = time.monotonic() - began_s
        keep(table.of_command("root container", "held by another controller", done, seconds))
        assert done.returncode == 3
        assert "is held by gpurun-other-run-1 until 2" in done.stderr
        assert home.rentals() == 0
    finally:
        machine.sh(f"rm -r /{held}")


def test_every_host_that_cannot_be_used_is_named(machine: Box, tried: Try) -> None:
    closed = entry(machine).replace("port = 22", "port = 2222")
    nobody = entry(machine, user="nobody")
    done = tried(machine, "two hosts, neither works", closed, nobody)
    assert done.returncode == 4
    assert "nothing listens at" in done.stderr
    assert "does not admit user nobody" in done.stderr


def test_a_host_that_cannot_be_used_does_not_blind_the_others(
    machine: Box, hosts_of: Callable[..., Hosts]
) -> None:
    home = hosts_of()
    home.list_hosts([entry(machine, user="nobody"), entry(machine)])
    done = home.run("up", home.recipe(), "--provider", "ssh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"ssh:root@{machine.host}:22" in done.stdout


def test_a_host_whose_controller_is_gone_for_good_is_given_free_by_name(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        gone, home = hosts_of(machine), hosts_of(machine)
        gone.begin(gone.recipe(train=WAITS))
        gone.until(lambda: bool(training(machine, WAITS)))
        gone.close()
        began_s = time.monotonic()
        done = home.run("up", home.recipe(), "--yes", "--provider", "ssh")
        seconds = time.monotonic() - began_s
        keep(table.of_command("root container", "held, its controller is gone", done, seconds))
        label = run_root(machine).name
        assert f"is held by {label}" in done.stderr
        freed = home.run("orphans", "--kill", label, "--yes")
        assert freed.returncode == 0, freed.stderr
        assert left_on(machine) == []
        kept = machine.root / "workspace/kept" / label
        assert [path.read_text() for path in kept.rglob("result.txt")] == ["42\n"]


def test_a_login_that_runs_tmux_instead_of_commands(tried: Try) -> None:
    with box(Shape(rc=TMUX_RC)) as machine:
        done = tried(machine, "none", entry(machine), shape="rc file that takes the login")
        assert done.returncode == 4
        assert "does not run commands" in done.stderr
        assert "let ~/.bashrc return at once unless the shell is interactive" in done.stderr


@pytest.mark.parametrize("workspace", ["read-only", "root's"])
def test_a_workspace_that_cannot_be_written(workspace: str, tried: Try) -> None:
    with box(Shape(user="ubuntu", sudo=False, workspace=workspace)) as machine:
        done = tried(machine, "none", entry(machine), shape=f"/workspace is {workspace}, no sudo")
        assert done.returncode == 3
        assert "its user can neither write /workspace nor use sudo" in done.stderr
        assert "with `workspace` in ssh_hosts of the settings" in done.stderr


def test_a_host_whose_key_is_another_than_before(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        assert home.run("offers", "--provider", "ssh").returncode == 0
        machine.change_host_key()
        began_s = time.monotonic()
        done = home.run("up", home.recipe(), "--yes", "--provider", "ssh")
        seconds = time.monotonic() - began_s
        keep(table.of_command("root container", "host key changed before", done, seconds))
        assert done.returncode == 4
        assert "nothing was sent to it" in done.stderr
        assert f"`rm {home.places.known_hosts / f'ssh-{machine.host}-22'}`" in done.stderr
        assert home.rentals() == 0


def test_a_disk_that_is_too_small(tried: Try) -> None:
    with box(Shape(disk_mb=500)) as machine:
        done = tried(machine, "none", entry(machine), shape="disk of 0.5 GB")
        assert done.returncode == 3
        assert "0 GB of disk are free, need.disk_gb is 1" in done.stderr
