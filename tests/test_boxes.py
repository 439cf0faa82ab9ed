"""The test boxes themselves: what the other tests stand on."""

import dataclasses
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.boxes import Box, Shape, box, make_key, shape, ssh_agent, sweep
from tests.boxes.box import check_this_machine, lacking_packages
from tests.boxes.claims import STATE, Claim, start_ticks

pytestmark = pytest.mark.box
ROOT = Path(__file__).parents[1]
SLEEPER = "setsid -f sleep 1000 >/dev/null 2>&1"


@pytest.fixture
def rented() -> Iterator[Box]:
    with box() as made:
        yield made


@contextmanager
def echo(made: Box) -> Iterator["subprocess.Popen[str]"]:
    """An open ssh connection that gives back every line."""
    with subprocess.Popen(
        ["ssh", *made.ssh_options(), f"{made.user}@{made.host}", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as connection:
        try:
            say(connection, "hello")
            assert answer(connection, 20) == "hello"
            yield connection
        finally:
            connection.kill()


def say(connection: "subprocess.Popen[str]", line: str) -> None:
    assert connection.stdin is not None
    connection.stdin.write(f"{line}\n")


def answer(connection: "subprocess.Popen[str]", within_s: float) -> str | None:
    """The next line, or None if none comes."""
    assert connection.stdout is not None
    if not select.select([connection.stdout], [], [], within_s)[0]:
        return None
    return connection.stdout.readline().rstrip("\n")


def connect(made: Box, within_s: float = 1) -> socket.socket:
    return socket.create_connection((made.host, made.port), within_s)


def is_gone(claim: Claim) -> bool:
    link = subprocess.run(["ip", "link", "show", claim.name], capture_output=True).returncode
    return not claim.folder.exists() and not claim.cgroup.exists() and link != 0


# A box, and what is left of it.


def test_a_box_answers_over_ssh_in_under_a_second() -> None:
    began_s = time.monotonic()
    with box() as made:
        assert time.monotonic() - began_s < 1
        assert made.ssh("id -un; hostname").stdout == f"root\n{made.name}\n"


def test_all_that_a_box_started_dies_with_it() -> None:
    with box() as made:
        made.ssh(f"{SLEEPER}; nohup sleep 1001 >/dev/null 2>&1 & tmux new -d sleep 1002")
        children = made.sh("pgrep -a sleep; pgrep tmux")
        assert all(f"sleep {seconds}" in children for seconds in (1000, 1001, 1002))
        began = {pid: start_ticks(pid) for pid in made.pids()}
        claim = Claim(int(made.state.name))
    assert len(began) >= 6
    assert not [pid for pid, ticks in began.items() if ticks and start_ticks(pid) == ticks]
    assert is_gone(claim)


def test_a_destroyed_box_ends_open_connections_and_keeps_its_number(rented: Box) -> None:
    with echo(rented) as connection:
        rented.destroy()
        assert not rented.alive
        assert connection.wait(20) == 255
    assert rented.state.is_dir()  # else another box could get the number while a test still has it


def test_a_box_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with (
        pytest.raises(RuntimeError, match=r"did not start: mount: .*/no/such/thing"),
        box(Shape(share=(Path("/no/such/thing"),))),
    ):
        pass
    owners = [owner.read_text().split()[0] for owner in STATE.glob("*/owner")]
    assert str(os.getpid()) not in owners


def test_two_boxes_see_nothing_of_each_other(rented: Box) -> None:
    with box() as other:
        other.sh(f"echo secret >/workspace/file; {SLEEPER}")
        assert rented.run(["ls", "/workspace"]).stdout == ""
        assert rented.run(["pgrep", "sleep"]).stdout == ""
        reached = rented.run(["curl", "--silent", "--max-time", "2", f"telnet://{other.host}:22"])
        assert "SSH-" not in reached.stdout
        assert rented.host_key != other.host_key


def test_a_box_sees_no_private_files_of_this_machine(rented: Box, tmp_path: Path) -> None:
    for folder in (ROOT, tmp_path, Path.home()):
        assert rented.run(["ls", "-A", str(folder)]).stdout in ("", ".bashrc\n.ssh\n")


def test_what_is_shared_is_seen_and_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with box(Shape(share=(tmp_path,))) as made:
        assert made.sh(f"cat {tmp_path}/file") == "here"
        assert "Read-only" in made.run(["touch", f"{tmp_path}/other"]).stderr


@pytest.mark.parametrize("network", ["none", "internet"])
def test_boxes_of_a_killed_test_process_are_removed_and_no_others(
    rented: Box, network: str
) -> None:
    script = (
        "import time; from tests.boxes import Shape, box\n"
        "from tests.fuse.places import wait_until\n"
        f"with box(Shape(network={network!r})) as made:\n"
        f"    made.ssh({SLEEPER!r})\n"
        "    wait_until(lambda: not made.run(['pgrep', '-f', '^sshd(-session)?: root']).stdout)\n"
        "    print(made.state.name, *made.pids(), flush=True)\n"
        "    time.sleep(1000)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with owner:
        try:
            assert owner.stdout is not None
            index, *pids = map(int, owner.stdout.readline().split())
            claim = Claim(index)
            began = {pid: start_ticks(pid) for pid in pids}
            assert len(pids) >= 4
            assert None not in began.values()
            sweep()
            assert [start_ticks(pid) for pid in pids] == list(began.values())
        finally:
            owner.kill()
    sweep()
    assert is_gone(claim)
    assert not [pid for pid in pids if start_ticks(pid) == began[pid]]
    assert claim.network not in masquerades()
    assert rented.ssh("echo fine").stdout == "fine\n"


def test_processes_that_rent_at_the_same_time_get_different_boxes() -> None:
    script = (
        "from tests.boxes import box\n"
        "with box() as made:\n"
        "    print(made.host, made.ssh('hostname').stdout.strip() == made.name, flush=True)\n"
        "    input()"
    )
    owners = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        said = [owner.stdout.readline() for owner in owners if owner.stdout]
    finally:
        for owner in owners:
            owner.communicate("\n", timeout=30)
    assert len(set(said)) == 4
    assert all(line.endswith(" True\n") for line in said)


def test_who_is_not_root_is_told_so() -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(RuntimeError, match="need root"):
            check_this_machine()
    finally:
        os.seteuid(0)


def test_a_missing_command_is_named_by_its_package() -> None:
    lacking = lacking_packages("/nowhere")
    assert {"openssh-server", "iproute2", "iptables"} <= set(lacking)
    assert set(lacking) <= set((ROOT / "tests/debian-packages.txt").read_text().split())


# Faults.


def test_a_cut_is_silent_and_the_connection_goes_on_after_it(rented: Box) -> None:
    with echo(rented) as connection:
        rented.cut()
        say(connection, "lost?")
        assert answer(connection, 0.5) is None
        with pytest.raises(TimeoutError):
            connect(rented, 0.3)
        rented.heal()
        assert answer(connection, 20) == "lost?"


def test_a_tenth_of_the_packets_is_lost(rented: Box) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind((rented.gateway, 0))
        ear.settimeout(0.3)
        send = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for _ in range(200):\n"
            f"    try: s.sendto(b'x', {ear.getsockname()!r})\n"
            "    except PermissionError: pass  # what netfilter says of its own loss\n"
        )

        def heard() -> int:
            assert rented.run(["python3", "-c", send]).returncode == 0
            count = 0
            while True:
                try:
                    ear.recv(1)
                except TimeoutError:
                    return count
                count += 1

        assert heard() == 200
        rented.loss(10)
        assert 150 <= heard() < 200
        rented.loss(0)
        assert heard() == 200


def test_refused_connections_leave_open_ones_alone(rented: Box) -> None:
    with echo(rented) as connection:
        rented.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(rented)
        say(connection, "still here")
        assert answer(connection, 20) == "still here"
        rented.accept()
        connect(rented).close()


def test_faults_of_the_network_add_up(rented: Box) -> None:
    rented.refuse()
    rented.cut()
    rented.heal()
    with pytest.raises(ConnectionRefusedError):
        connect(rented)


def test_a_reset_ends_open_connections_and_no_later_ones(rented: Box) -> None:
    with echo(rented) as connection, connect(rented) as wire:
        wire.recv(64)
        rented.reset_connections()
        assert connection.wait(20) == 255
        with pytest.raises(ConnectionResetError):
            wire.recv(64)
    assert rented.ssh("echo fine").stdout == "fine\n"


def test_a_frozen_box_accepts_and_says_nothing_until_thawed(rented: Box) -> None:
    rented.freeze()
    with connect(rented) as wire:
        wire.settimeout(0.5)
        with pytest.raises(TimeoutError):
            wire.recv(4)
        rented.thaw()
        wire.settimeout(20)
        assert wire.recv(4) == b"SSH-"


def test_a_frozen_box_can_be_destroyed(rented: Box) -> None:
    rented.freeze()
    rented.destroy()
    assert not rented.alive


def test_a_slow_line_is_slow_for_what_the_box_sends(rented: Box) -> None:
    rented.rate(8)
    began_s = time.monotonic()
    assert rented.ssh("head -c 1000000 /dev/zero | wc -c; head -c 1000000 /dev/zero").stdout
    assert time.monotonic() - began_s > 0.8
    rented.rate(0)


IDENTITY = "cat /proc/sys/kernel/random/boot_id; cut -d' ' -f22 /proc/1/stat; cat /proc/uptime"


def test_a_reboot_starts_boot_id_clocks_and_processes_anew(rented: Box) -> None:
    rented.sh("echo kept >/workspace/file; touch /tmp/lost /run/lost /dev/shm/lost")
    rented.ssh(SLEEPER)
    boot_id, _, uptime, *_ = rented.sh(IDENTITY).split()
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    rented.run(["sleep", "1.1"])
    rented.reboot()
    new_boot_id, _, new_uptime, *_ = rented.sh(IDENTITY).split()
    assert len({boot_id, new_boot_id, kernel}) == 3
    assert float(new_uptime) < float(uptime) + 1
    assert rented.sh("cat /workspace/file; ls /tmp /dev/shm") == "kept\n/dev/shm:\n\n/tmp:\n"
    assert rented.run(["pgrep", "sleep"]).stdout == ""
    assert rented.ssh("echo fine").stdout == "fine\n"


def test_a_frozen_box_that_nobody_reaches_can_be_rebooted(rented: Box) -> None:
    rented.freeze()
    rented.cut()
    rented.reboot()
    rented.heal()
    assert rented.ssh("echo fine").stdout == "fine\n"


def test_a_restarted_container_has_the_same_kernel_and_another_process_1(rented: Box) -> None:
    rented.ssh(SLEEPER)
    boot_id, started, uptime, *_ = rented.sh(IDENTITY).split()
    rented.restart()
    new_boot_id, new_started, new_uptime, *_ = rented.sh(IDENTITY).split()
    assert new_boot_id == boot_id
    assert int(new_started) > int(started)
    assert float(new_uptime) > float(uptime)
    assert rented.run(["pgrep", "sleep"]).stdout == ""


def test_a_full_disk_takes_no_more_until_it_is_freed(rented: Box) -> None:
    rented.fill_disk()
    full = rented.ssh("echo more >/workspace/file")
    assert "No space left on device" in full.stderr
    rented.free_disk()
    assert rented.ssh("echo more >/workspace/file; cat /workspace/file").stdout == "more\n"


def test_a_changed_host_key_is_seen_and_refused(rented: Box) -> None:
    assert rented.ssh("true").returncode == 0
    before = rented.host_key
    scan = ["ssh-keyscan", "-t", "ed25519", rented.host]
    assert before in subprocess.run(scan, capture_output=True, text=True).stdout
    rented.change_host_key()
    assert before != rented.host_key
    assert rented.host_key in subprocess.run(scan, capture_output=True, text=True).stdout
    refused = rented.ssh("true")
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr


# Shapes.


def test_a_small_disk_and_a_small_shared_memory_are_what_they_say() -> None:
    with box(Shape(disk_mb=20)) as made:
        assert "No space left" in made.ssh("head -c 21M /dev/zero >/workspace/file").stderr
        assert made.ssh("head -c 63M /dev/zero >/dev/shm/file").returncode == 0
        assert "No space left" in made.ssh("head -c 65M /dev/zero >/dev/shm/file").stderr


def test_a_vm_user_has_sudo_without_a_password_and_no_workspace() -> None:
    with box(shape.UBUNTU_VM) as made:
        assert made.ssh("id -un; sudo -n id -un; ls -d /workspace").stdout == "ubuntu\nroot\n"
        assert made.ssh("sudo mkdir /workspace && sudo chown ubuntu /workspace").returncode == 0
        # systemd is process 1, so that a service outlives the login that started it.
        made.ssh("sudo systemd-run --unit=mine sleep 1000")
        assert made.ssh("sudo systemctl is-active mine").stdout == "active\n"


def test_a_user_without_sudo_cannot_write_to_a_workspace_of_root() -> None:
    with box(Shape(user="ubuntu", sudo=False, workspace="root's")) as made:
        assert made.ssh("sudo -n true || touch /workspace/file").returncode != 0


def test_nobody_can_write_to_a_read_only_workspace() -> None:
    with box(Shape(workspace="read-only")) as made:
        assert "Read-only" in made.ssh("touch /workspace/file").stderr


def test_commands_are_taken_away_by_name() -> None:
    commands = ("tmux", "curl", "python3", "rsync")
    with box(Shape(without=commands)) as made:
        found = made.ssh("command -v tmux curl python3 python3.11 rsync; command -v setsid").stdout
    assert found == "/usr/bin/setsid\n"


def test_an_rc_file_prints_before_the_command_or_keeps_it_from_running() -> None:
    with box(Shape(rc=shape.PRINTING_RC)) as made:
        assert made.ssh("echo mine").stdout == "Welcome to your machine!\nmine\n"
    with box(Shape(rc=shape.TMUX_RC)) as made:
        assert "mine" not in made.ssh("echo mine").stdout
        made.sh("touch /root/.no_auto_tmux")
        assert made.ssh("echo mine").stdout == "mine\n"


def test_a_password_is_asked_for_and_none_is_right() -> None:
    with box(Shape(passwords=True)) as made:
        made.authorise_nobody()
        assert "Permission denied (publickey,password)" in made.ssh("true").stderr


def test_a_key_with_a_passphrase_needs_the_agent(rented: Box, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "secret words")
    rented.authorise_nobody()
    rented.authorise(locked)
    rented.key = locked
    assert "Permission denied" in rented.ssh("true").stderr
    with ssh_agent(rented.state) as agent:
        agent.add(locked, "secret words")
        login = ["ssh", *rented.ssh_options(), f"root@{rented.host}", "echo in"]
        done = subprocess.run(
            login, env=os.environ | agent.environment, capture_output=True, text=True
        )
        assert done.stdout == "in\n"


def test_a_box_from_nothing_has_sshd_and_python_and_no_tools() -> None:
    bare = dataclasses.replace(shape.FROM_NOTHING, network="none")
    with box(bare) as made:
        wanted = "python3 sudo tmux curl rsync git pip3"
        found = made.ssh(f"for c in {wanted}; do command -v $c; done; nvidia-smi -L | wc -l").stdout
        assert found == "/usr/bin/python3\n/usr/bin/sudo\n4\n"
        assert "ensurepip" in made.ssh("python3 -m venv /tmp/venv 2>&1").stdout


# The way out.


def masquerades() -> str:
    """The rules by which this machine lets others out."""
    rules = ["iptables", "-w", "-t", "nat", "-S", "POSTROUTING"]
    return subprocess.run(rules, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("base", [shape.Shape(), shape.FROM_NOTHING], ids=["host", "minbase"])
def test_a_box_with_internet_reaches_the_package_registries(base: Shape) -> None:
    with box(dataclasses.replace(base, network="internet")) as made:
        network = Claim(int(made.state.name)).network
        assert masquerades().count(f"-s {network} ") == 1
        install = "apt-get update -q && apt-get install -qy --no-install-recommends python3-pip"
        if base.base == "minbase":
            assert made.ssh(install, timeout_s=120).returncode == 0
        download = "python3 -m pip download --no-deps --no-cache-dir --dest /tmp/wheels idna"
        assert made.ssh(download, timeout_s=120).returncode == 0, made.log()
    assert network not in masquerades()


def test_forwarding_is_as_before_once_the_last_box_has_gone(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.boxes import nat\n"
        "def now(): return nat.FORWARDING.read_text().strip() + str(len(nat.rules()))\n"
        "folder = Path(sys.argv[1]); nat.FORWARDING.write_text('0'); seen = [now()]\n"
        "for network in ('10.77.0.0/30', '10.77.0.4/30'):\n"
        "    nat.open_to(folder, network); seen.append(now())\n"
        "for network in ('10.77.0.0/30', '10.77.0.0/30', '10.77.0.4/30'):\n"
        "    nat.close(folder, network); seen.append(now())\n"
        "print(*seen)"
    )
    alone = ["unshare", "--net", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["00", "11", "12", "11", "11", "00"], done.stderr
