"""Provider `local`: the contract, by every way of containment that works here, and its traps."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.errors import (
    CreateFailedButMade,
    CreateUnclear,
    GpurunError,
    NoCapacity,
    ProviderError,
)
from gpurun.model import InstanceState
from gpurun.provider import Containment, OwnFuse, OwnShell
from gpurun.shell import LocalShell
from provisioners.local import Local, processes, strategies
from provisioners.local.containment import BEST_EFFORT, STRATEGIES, launch
from tests.contract import LABEL, NEED, OTHER_LABEL, UniqueLabelContract, order

CLOCK = SystemClock()
RATE = Decimal("1.25")
NOBODY = 65534
NAP = f"/bin/sleep 7{os.getpid():07}"  # of this process alone: tests run side by side


def works(strategy: str) -> bool:
    try:
        launch([strategy], "gpurun-probe").abort()
    except strategies.CannotContain:
        return False
    return True


WORKING = [name for name in STRATEGIES if works(name)]
SURE = [name for name in WORKING if name != BEST_EFFORT]


@pytest.fixture(params=WORKING)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture(params=SURE)
def sure_cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture
def any_cloud(tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, WORKING)


def opened(state_dir: Path, containment: list[str]) -> Iterator[Local]:
    yield Local(state_dir, RATE, CLOCK, containment)
    for label in (LABEL, OTHER_LABEL):  # also what a failed test left, or hid from `destroy`
        strategies.Marked().end_all(label, CLOCK)


def rent(cloud: Local, label: str = LABEL) -> LocalShell:
    return cloud.shell(cloud.create(order(cloud, label)).instance_id)


def record(cloud: Local, state_dir: Path) -> Path:
    return state_dir / "boxes" / LABEL / "box.json"


def edit(path: Path, **changes: object) -> dict[str, object]:
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | changes))
    return before


def lives(pid: int) -> bool:
    process = processes.find(pid)
    return process is not None and not process.dead


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


def outer_pids(words: str) -> list[int]:
    """The processes of this machine whose command line is exactly this."""
    found = []
    for process in processes.table():
        try:
            said = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if said.rstrip(b"\0").split(b"\0") == words.encode().split() and lives(process.pid):
            found.append(process.pid)
    return found


class TestContract(UniqueLabelContract):
    def settle(self, cloud: Local) -> None:
        pass  # a directory is seen at once

    def test_it_has_its_own_shell_fuse_and_word_on_containment(self, cloud: Local) -> None:
        assert isinstance(cloud, OwnShell)
        assert isinstance(cloud, OwnFuse)
        assert isinstance(cloud, Containment)


# What a box is


def test_a_new_box_runs_and_is_found_by_another_process(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    other = Local(tmp_path, Decimal(9), CLOCK)
    row = other.instances()[0]
    assert (row.label, row.state, row.usd_per_hour) == (LABEL, InstanceState.RUNNING, RATE)


def test_commands_run_in_the_root_of_the_box(cloud: Local, tmp_path: Path) -> None:
    shell = rent(cloud)
    root = tmp_path / "boxes" / LABEL / "root"
    result = shell.run("/bin/pwd; cd tmp && /bin/pwd; echo $HOME; touch made", timeout_s=10)
    assert result.output.split() == [str(root), f"{root}/tmp", f"{root}/home"]
    assert (root / "tmp" / "made").exists()


def test_a_box_sees_the_installers_settings_and_none_of_our_secrets(
    any_cloud: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "VAST_API_KEY", "HF_TOKEN", "PIP_TOKEN", "UV_PUBLISH_PASSWORD"):
        monkeypatch.setenv(name, "sesame")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    monkeypatch.setenv("GPURUN_CONFIG", "/elsewhere")
    seen = dict(
        line.split("=", 1) for line in rent(any_cloud).run("env", timeout_s=10).output.splitlines()
    )
    assert "sesame" not in seen.values()
    assert "GPURUN_CONFIG" not in seen
    assert seen["PIP_INDEX_URL"] == "https://index.example/simple"
    assert seen["https_proxy"] == "http://proxy.example"
    assert seen["GPURUN_LABEL"] == LABEL
    assert seen["PATH"].startswith(f"{seen['GPURUN_ROOT']}/venv/bin:")
    assert len(seen["TMPDIR"]) <= 75  # multiprocessing's sockets must fit


def test_a_timeout_ends_a_command_inside_the_box(cloud: Local) -> None:
    assert rent(cloud).run(f"exec {NAP}", timeout_s=0.5).exited == 124
    wait_for(lambda: not outer_pids(NAP))


def test_the_init_reaps_what_it_adopts(sure_cloud: Local) -> None:
    shell = rent(sure_cloud)
    shell.run("for i in 1 2 3; do (setsid sh -c 'sleep 0.1' &); done; sleep 0.3", timeout_s=10)
    zombies = "ps -o stat= -A | grep -c '^Z' || :"
    if "shared-proc" not in json.loads(record_text(sure_cloud))["containment"]:
        wait_for(lambda: shell.run(zombies, timeout_s=10).output.strip() == "0")


def record_text(cloud: Local) -> str:
    return (cloud._boxes / LABEL / "box.json").read_text()


# Its end


@pytest.mark.parametrize(
    "command",
    [
        "NAP &",
        "setsid NAP &",
        "nohup NAP >/dev/null 2>&1 &",
        "(setsid sh -c 'NAP & NAP' &) &",
    ],
)
def test_whatever_bears_the_mark_ends_with_its_box(cloud: Local, command: str) -> None:
    rent(cloud).run(command.replace("NAP", NAP), timeout_s=10)
    wait_for(lambda: bool(outer_pids(NAP)))
    cloud.destroy(LABEL)
    assert outer_pids(NAP) == []


@pytest.mark.parametrize(
    "command",
    ["env -i setsid NAP &", "(env -i sh -c '(setsid NAP &) &' &) &"],
)
def test_contained_a_process_without_mark_parent_or_session_ends_too(
    sure_cloud: Local, command: str
) -> None:
    rent(sure_cloud).run(command.replace("NAP", NAP), timeout_s=10)
    wait_for(lambda: bool(outer_pids(NAP)))
    sure_cloud.destroy(LABEL)
    assert outer_pids(NAP) == []


def test_best_effort_finds_a_cleared_environment_by_its_parent_or_session(tmp_path: Path) -> None:
    for cloud in opened(tmp_path, [BEST_EFFORT]):
        shell = rent(cloud)
        running = threading.Thread(
            target=shell.run, args=(f"env -i {NAP}; :",), kwargs={"timeout_s": 60}
        )
        running.start()
        wait_for(lambda: bool(outer_pids(NAP)))
        cloud.destroy(LABEL)
        running.join(10)
        assert outer_pids(NAP) == []


def test_best_effort_says_so(tmp_path: Path) -> None:
    assert "best effort" in Local(tmp_path, RATE, CLOCK, [BEST_EFFORT]).containment()
    for name in SURE:
        assert "every process" in Local(tmp_path, RATE, CLOCK, [name]).containment()


def test_a_process_that_forks_while_it_is_killed_ends(cloud: Local) -> None:
    rent(cloud).run("for i in 1 2 3; do (while :; do sleep 0.01; done) & done", timeout_s=10)
    cloud.destroy(LABEL)
    assert processes.marked(strategies.MARK, LABEL) == set()


def test_a_command_under_way_has_an_unknown_outcome(cloud: Local) -> None:
    shell = rent(cloud)
    results = []
    thread = threading.Thread(target=lambda: results.append(shell.run(f"{NAP}; :", timeout_s=60)))
    thread.start()
    wait_for(lambda: bool(outer_pids(NAP)))
    cloud.destroy(LABEL)
    thread.join(10)
    assert results[0].exited == -1
    assert shell.run("true", timeout_s=10).exited == -1


def test_destroy_takes_less_than_two_seconds(cloud: Local) -> None:
    shell = rent(cloud)
    shell.run(f"trap '' TERM INT HUP; for i in $(seq 30); do {NAP} & done", timeout_s=30)
    begun = time.monotonic()
    cloud.destroy(LABEL)
    assert time.monotonic() - begun < 2


def test_a_box_whose_init_was_killed_is_stopped_and_can_be_destroyed(
    cloud: Local, tmp_path: Path
) -> None:
    rent(cloud)
    init = json.loads(record(cloud, tmp_path).read_text())["init"]["pid"]
    os.kill(init, 9)
    wait_for(lambda: not lives(init))
    assert cloud.instances()[0].state is InstanceState.STOPPED
    cloud.destroy(LABEL)
    assert cloud.instances() == []


# Signals go only to what is proven ours


def test_after_a_reboot_nobody_is_signalled(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    before = edit(record(cloud, tmp_path), boot_id="another boot")
    assert cloud.instances()[0].state is InstanceState.STOPPED
    assert cloud.shell(LABEL).run("true", timeout_s=10).exited == -1
    cloud.destroy(LABEL)
    assert lives(before["init"]["pid"])
    assert cloud.instances() == []


def test_a_reused_pid_is_not_signalled(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        before = edit(record(cloud, tmp_path), init={"pid": stranger.pid, "start": "1"})
        assert cloud.instances()[0].state is InstanceState.STOPPED
        cloud.destroy(LABEL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        if lives(before["init"]["pid"]):
            os.kill(before["init"]["pid"], 9)


def test_a_box_of_another_pid_namespace_is_left_alone_and_said(
    cloud: Local, tmp_path: Path
) -> None:
    rent(cloud)
    before = edit(record(cloud, tmp_path), pid_namespace="pid:[1]")
    assert cloud.instances()[0].state is InstanceState.UNKNOWN
    with pytest.raises(ProviderError, match="another pid namespace"):
        cloud.destroy(LABEL)
    assert lives(before["init"]["pid"])
    assert len(cloud.instances()) == 1


def test_a_damaged_record_is_unknown_and_the_box_still_ends(cloud: Local, tmp_path: Path) -> None:
    rent(cloud).run(f"{NAP} &", timeout_s=10)
    init = json.loads(record(cloud, tmp_path).read_text())["init"]["pid"]
    record(cloud, tmp_path).write_text("{")
    assert cloud.instances()[0].state is InstanceState.UNKNOWN
    cloud.destroy(LABEL)
    assert not lives(init)
    assert outer_pids(NAP) == []
    assert cloud.instances() == []


@pytest.mark.parametrize("instance_id", ["..", "../boxes", ".used", "", "a/b", "a\0b", "x" * 200])
def test_an_id_that_is_not_a_label_touches_nothing(any_cloud: Local, instance_id: str) -> None:
    rent(any_cloud)
    any_cloud.destroy(instance_id)
    assert any_cloud.instance(instance_id) is None
    assert len(any_cloud.instances()) == 1
    with pytest.raises(ProviderError):
        any_cloud.shell(instance_id)
    with pytest.raises(NoCapacity):
        any_cloud.create(replace(order(any_cloud), label=instance_id))


# Crashes and races

STUCK = """
import sys, time
from decimal import Decimal
from pathlib import Path
from gpurun.clock import SystemClock
from provisioners.local import Local
from tests.contract import order

class Stuck(SystemClock):
    def now(self):  # asked when the init waits and box.json is not yet written
        print("stuck", flush=True)
        time.sleep(600)

cloud = Local(Path(sys.argv[1]), Decimal(1), Stuck(), [sys.argv[2]])
cloud.create(order(cloud, sys.argv[3]))
"""


@pytest.fixture
def stuck_creator(cloud: Local, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    creator = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path), *cloud._strategies, LABEL],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert creator.stdout is not None
    assert creator.stdout.readline() == "stuck\n"
    yield creator
    creator.kill()
    creator.wait()
    creator.stdout.close()


def test_a_creator_killed_before_the_record_leaves_a_row_and_no_process(
    cloud: Local, stuck_creator: subprocess.Popen[str]
) -> None:
    assert processes.marked(strategies.MARK, LABEL)
    assert [row.state for row in cloud.instances()] == [InstanceState.STARTING]
    stuck_creator.kill()
    wait_for(lambda: not processes.marked(strategies.MARK, LABEL))
    assert [row.state for row in cloud.instances()] == [InstanceState.STARTING]
    with pytest.raises(CreateFailedButMade):
        cloud.create(order(cloud))
    cloud.destroy(LABEL)
    assert cloud.instances() == []


def test_a_box_can_be_destroyed_while_it_is_being_made(
    cloud: Local, stuck_creator: subprocess.Popen[str]
) -> None:
    cloud.destroy(LABEL)
    assert cloud.instances() == []
    assert not processes.marked(strategies.MARK, LABEL)


def test_a_creator_killed_before_the_directory_leaves_nothing_but_a_used_label(
    any_cloud: Local, tmp_path: Path
) -> None:
    (tmp_path / "boxes" / ".used").mkdir(parents=True)
    (tmp_path / "boxes" / ".used" / LABEL).touch()
    assert any_cloud.instances() == []
    with pytest.raises(CreateUnclear):
        any_cloud.create(order(any_cloud))
    assert any_cloud.instances() == []


def test_of_many_creators_of_one_label_one_makes_a_box(cloud: Local, tmp_path: Path) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def create() -> None:
        mine = Local(tmp_path, RATE, CLOCK, cloud._strategies)
        wanted = order(mine)
        start.wait()
        try:
            mine.create(wanted)
            outcomes.append("made")
        except (CreateFailedButMade, CreateUnclear):
            outcomes.append("refused")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7
    assert [row.state for row in cloud.instances()] == [InstanceState.RUNNING]


def test_create_against_destroy_leaves_all_or_nothing(cloud: Local, tmp_path: Path) -> None:
    for number in range(12):
        wanted = order(cloud, f"{LABEL}{number}")
        ended = threading.Event()

        def destroy(label: str = wanted.label, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                cloud.destroy(label)

        destroyer = threading.Thread(target=destroy)
        destroyer.start()
        try:
            cloud.create(wanted)
        except GpurunError:
            pass
        finally:
            ended.set()
            destroyer.join()
        cloud.destroy(wanted.label)
        wait_for(lambda label=wanted.label: not processes.marked(strategies.MARK, label))
    assert cloud.instances() == []


def test_two_destroyers_do_not_trip_over_each_other(any_cloud: Local, tmp_path: Path) -> None:
    shell = rent(any_cloud)
    shell.run(
        "mkdir keep; for i in $(seq 300); do echo $i > keep/$i; done;"
        " echo keep > .gpurun/collect.txt",
        timeout_s=30,
    )
    failures: list[BaseException] = []

    def destroy() -> None:
        try:
            any_cloud.destroy(LABEL)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=destroy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert any_cloud.instances() == []
    saved = {
        path.name: path.read_text().strip() for path in any_cloud.salvage(LABEL).rglob("[0-9]*")
    }
    assert saved == {str(number): str(number) for number in range(1, 301)}


# Artifacts


def fill(shell: LocalShell, collect: str) -> Path:
    shell.run(
        "mkdir -p checkpoints/a logs other; echo 1 > checkpoints/a/step_1; echo 2 > checkpoints/b;"
        f" echo l > logs/log; echo o > other/o; printf '{collect}' > .gpurun/collect.txt",
        timeout_s=10,
    )
    return shell.root


def note_collected(root: Path, *paths: str) -> None:
    lines = [
        f"{(root / path).stat().st_mtime_ns} {(root / path).stat().st_size} {path}\n"
        for path in paths
    ]
    (root / ".gpurun" / "collected.txt").write_text("".join(lines))


def saved(cloud: Local) -> list[str]:
    home = cloud.salvage(LABEL)
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if not p.is_dir())


def test_what_was_not_collected_is_saved(any_cloud: Local) -> None:
    fill(rent(any_cloud), r"checkpoints\nlogs/*\n")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["checkpoints/a/step_1", "checkpoints/b", "logs/log"]
    assert (any_cloud.salvage(LABEL) / "checkpoints/b").read_text() == "2\n"


def test_what_was_collected_is_removed_with_the_box(any_cloud: Local, tmp_path: Path) -> None:
    root = fill(rent(any_cloud), r"checkpoints\nlogs\n")
    note_collected(root, "checkpoints/a/step_1", "checkpoints/b", "logs/log")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == []
    assert not (tmp_path / "salvage").exists()
    assert list((tmp_path / "boxes" / ".trash").iterdir()) == []


def test_what_changed_after_it_was_collected_is_saved(any_cloud: Local) -> None:
    root = fill(rent(any_cloud), "checkpoints")
    note_collected(root, "checkpoints/a/step_1", "checkpoints/b")
    now = (root / "checkpoints/b").stat()
    (root / "checkpoints/b").write_text("3\n")  # the same size
    os.utime(root / "checkpoints/b", ns=(now.st_atime_ns, now.st_mtime_ns + 1))
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["checkpoints/b"]


def test_a_torn_list_of_collected_files_saves_too_much(any_cloud: Local) -> None:
    root = fill(rent(any_cloud), "logs")
    (root / ".gpurun" / "collected.txt").write_text("17")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["logs/log"]


@pytest.mark.parametrize("glob", ["../../*", "/etc/*", "logs/../../../*"])
def test_a_glob_that_leaves_the_box_moves_nothing_out_there(
    any_cloud: Local, tmp_path: Path, glob: str
) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "bystander").write_text("here")
    fill(rent(any_cloud), glob)
    any_cloud.destroy(LABEL)
    assert (tmp_path / "boxes" / "bystander").read_text() == "here"
    assert Path("/etc/passwd").exists()


@pytest.mark.parametrize("glob", ["./checkpoints/", "**/step_*", "./**/step_*"])
def test_globs_are_read_as_users_write_them(any_cloud: Local, glob: str) -> None:
    fill(rent(any_cloud), glob)
    any_cloud.destroy(LABEL)
    assert "checkpoints/a/step_1" in saved(any_cloud)


def test_symlinks_out_of_the_box_are_not_followed(any_cloud: Local, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").write_text("precious")
    outside.chmod(0o500)
    shell = rent(any_cloud)
    shell.run(
        f"ln -s {outside} checkpoints; ln -s {outside}/deep/file link; mkdir d;"
        f" ln -s {outside} d/in; printf 'checkpoints\\nlink\\nd\\n' > .gpurun/collect.txt",
        timeout_s=10,
    )
    any_cloud.destroy(LABEL)
    assert (outside / "deep" / "file").read_text() == "precious"
    assert outside.stat().st_mode & 0o777 == 0o500
    assert saved(any_cloud) == []
    assert any_cloud.instances() == []


def test_a_root_that_was_made_a_symlink_is_not_followed(any_cloud: Local, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / ".gpurun").mkdir(parents=True)
    (outside / ".gpurun" / "collect.txt").write_text("*")
    (outside / "file").write_text("precious")
    rent(any_cloud).run(f"cd ..; mv root old; ln -s {outside} root", timeout_s=10)
    any_cloud.destroy(LABEL)
    assert (outside / "file").read_text() == "precious"
    assert any_cloud.instances() == []


def test_what_a_link_inside_the_box_names_is_saved(any_cloud: Local) -> None:
    shell = rent(any_cloud)
    shell.run(
        "mkdir -p real/a; echo x > real/a/x; ln -s real checkpoints; ln -s . real/loop;"
        " echo checkpoints > .gpurun/collect.txt",
        timeout_s=10,
    )
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["real/a/x"]


# As an ordinary user


def as_nobody(check: Callable[[Path], None]) -> None:
    """Run a check as a user without privilege, in a directory of its own."""
    if os.getuid() != 0:  # then the whole suite runs as one
        with tempfile.TemporaryDirectory() as directory:
            check(Path(directory))
        return
    directory = Path(tempfile.mkdtemp(prefix="gpurun-test-"))
    try:
        directory.chmod(0o755)
        os.chown(directory, NOBODY, NOBODY)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.environ["HOME"] = str(directory)
                check(directory / "state")
                os._exit(0)
            except BaseException as error:
                os.write(write, repr(error).encode()[:4096])
            finally:
                os._exit(1)
        os.close(write)
        heard = b""
        while select.select([read], [], [], 60)[0] and (data := os.read(read, 4096)):
            heard += data
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0, heard.decode()
    finally:
        shutil.rmtree(directory)


def test_an_ordinary_user_ends_what_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(state_dir: Path) -> None:
        sure = [name for name in STRATEGIES if works(name) and name != BEST_EFFORT]
        for number, name in enumerate([*sure, BEST_EFFORT]):
            cloud = Local(state_dir, RATE, CLOCK, [name])
            label = f"{LABEL}n{number}"
            shell = rent(cloud, label)
            hidden = f"env -i setsid {NAP} &" if name in sure else f"setsid {NAP} &"
            assert shell.run(f"id -u; {hidden}", timeout_s=10).ok
            wait_for(lambda: bool(outer_pids(NAP)))
            cloud.destroy(label)
            assert outer_pids(NAP) == [], name
            assert cloud.instances() == []

    as_nobody(check)


def test_directories_that_forbid_it_are_removed_and_their_artifacts_saved() -> None:
    def check(state_dir: Path) -> None:
        cloud = Local(state_dir, RATE, CLOCK)
        fill(rent(cloud), "checkpoints").joinpath("checkpoints/a").chmod(0)
        shell = cloud.shell(LABEL)
        assert shell.run("chmod 500 other logs . ; chmod 0 .gpurun", timeout_s=10).ok
        cloud.destroy(LABEL)
        assert cloud.instances() == []
        assert saved(cloud) == ["checkpoints/a/step_1", "checkpoints/b"]
        assert list((state_dir / "boxes" / ".trash").iterdir()) == []

    as_nobody(check)


# The fuse


def fuse(text: str) -> int:
    """Run as a fuse would: outside of the box's tree, under strict settings."""
    return subprocess.run(["sh", "-euc", text], env={"PATH": os.defpath}, timeout=30).returncode


def test_the_fuse_ends_the_processes_and_leaves_the_files(cloud: Local) -> None:
    shell = rent(cloud)
    shell.run(f"touch kept; setsid {NAP} &", timeout_s=10)
    wait_for(lambda: bool(outer_pids(NAP)))
    text = cloud.self_destroy(LABEL)
    assert fuse(text) == 0
    assert outer_pids(NAP) == []
    assert cloud.instances()[0].state is InstanceState.STOPPED
    assert (shell.root / "kept").exists()
    assert fuse(text) == 0  # again, when nobody is left
    cloud.destroy(LABEL)
    assert fuse(text) == 0


def test_after_a_reboot_the_fuse_signals_nobody(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    before = edit(record(cloud, tmp_path), boot_id="another boot")
    assert fuse(cloud.self_destroy(LABEL)) == 0
    assert lives(before["init"]["pid"])


def test_the_fuse_does_not_signal_a_reused_pid(sure_cloud: Local, tmp_path: Path) -> None:
    rent(sure_cloud)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        edit(record(sure_cloud, tmp_path), init={"pid": stranger.pid, "start": "1"})
        assert fuse(sure_cloud.self_destroy(LABEL)) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_home_of_the_fuse_is_outside_of_what_it_ends(any_cloud: Local) -> None:
    shell = rent(any_cloud)
    home = Path(any_cloud.fuse_home(LABEL))
    assert home.is_dir()
    assert home.stat().st_mode & 0o077 == 0
    assert not home.is_relative_to(shell.root.parent)
    any_cloud.destroy(LABEL)
    assert home.is_dir()


# Offers


def with_gpus(names: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = directory / "nvidia-smi"
    shim.write_text("#!/bin/sh\n" + "".join(f"echo '{name}'\n" for name in names))
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("wanted", "count", "offered"),
    [
        ("H100", 2, True),
        ("h100", 1, True),
        ("H100", 3, False),
        ("H100 80GB", 1, True),
        ("L4", 1, False),
        ("L40S", 1, True),
        ("A100", 1, False),
        (None, 0, True),
    ],
)
def test_gpus_are_offered_as_nvidia_smi_lists_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str | None,
    count: int,
    offered: bool,
) -> None:
    names = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"]
    with_gpus(names, tmp_path, monkeypatch)
    need = replace(NEED, gpu=wanted, gpu_count=count)
    assert bool(list(Local(tmp_path, RATE, CLOCK).offers(need))) is offered


def test_more_disk_than_is_free_is_not_offered(tmp_path: Path) -> None:
    assert not list(Local(tmp_path, RATE, CLOCK).offers(replace(NEED, disk_gb=10**6)))


def test_the_offer_describes_this_machine(tmp_path: Path) -> None:
    offer = next(iter(Local(tmp_path / "not" / "yet", RATE, CLOCK).offers(NEED)))
    assert offer.cpu_count == os.cpu_count()
    assert offer.memory_gb > 0
    assert offer.usd_per_hour == RATE


def test_the_account_is_this_user_of_this_machine(tmp_path: Path) -> None:
    first, second = Local(tmp_path / "a", RATE, CLOCK), Local(tmp_path / "b", RATE, CLOCK)
    assert first.account() == second.account()


# What is not known raises


def test_a_list_that_cannot_be_read_is_an_error_not_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "boxes").write_text("a file where the directory should be")
    with pytest.raises(ProviderError):
        Local(tmp_path, RATE, CLOCK).instances()


def test_where_nothing_can_contain_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Local(tmp_path, RATE, CLOCK, ["pid-namespace"])
    wanted = order(cloud)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    with pytest.raises(NoCapacity, match="unshare is not installed"):
        cloud.create(wanted)
    assert cloud.instances() == []
    assert "none of the known ways" in cloud.containment()


def test_a_machine_without_proc_is_read_by_ps() -> None:
    """As on macOS, as far as the `ps` of this machine can tell."""
    environment = os.environ | {strategies.MARK: LABEL}
    child = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True)
    try:
        wait_for(lambda: bool(outer_pids("sleep 300")))
        rows = {process.pid: (process, words) for process, words in processes.listed_by_ps()}
        process, words = rows[child.pid]
        assert (process.parent, process.session) == (os.getpid(), child.pid)
        assert f"{strategies.MARK}={LABEL}" in words.split()
        assert rows.keys() >= {os.getpid(), 1}
    finally:
        child.kill()
        child.wait()
