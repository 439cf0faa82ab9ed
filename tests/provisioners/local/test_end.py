"""The end of a local box: nobody survives, and nobody else is signalled."""

import json
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.errors import (
    NoCapacity,
    ProviderError,
)
from gpurun.model import InstanceState
from provisioners.local import Local, processes, strategies
from provisioners.local.containment import BEST_EFFORT, STRATEGIES
from tests.contract import LABEL, order
from tests.provisioners.local.boxes import (
    CLOCK,
    NAP,
    RATE,
    SURE,
    as_nobody,
    edit,
    lives,
    opened,
    outer_pids,
    record,
    rent,
    wait_for,
    works,
)


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


@pytest.mark.parametrize(
    "command",
    [
        "env -i NAP; :",
        "env -i setsid NAP & wait",  # known by its parent alone
        "env -i sh -c 'NAP &'; /bin/sleep 60",  # known by its session alone
    ],
)
def test_best_effort_finds_a_cleared_environment_by_its_parent_or_session(
    tmp_path: Path, command: str
) -> None:
    for cloud in opened(tmp_path, [BEST_EFFORT]):
        shell = rent(cloud)
        running = threading.Thread(
            target=shell.run, args=(command.replace("NAP", NAP),), kwargs={"timeout_s": 60}
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
    # `unshare`, which has only waited for the box, needs a moment; who forks would fork for ever.
    wait_for(lambda: processes.marked(strategies.MARK, LABEL) == set())


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
    init = json.loads(record(tmp_path).read_text())["init"]["pid"]
    os.kill(init, 9)
    wait_for(lambda: not lives(init))
    assert cloud.instances()[0].state is InstanceState.STOPPED
    cloud.destroy(LABEL)
    assert cloud.instances() == []


def test_after_a_reboot_nobody_is_signalled(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    before = edit(record(tmp_path), boot_id="another boot")
    assert cloud.instances()[0].state is InstanceState.STOPPED
    assert cloud.shell(LABEL).run("true", timeout_s=10).exited == -1
    cloud.destroy(LABEL)
    assert lives(before["init"]["pid"])
    assert cloud.instances() == []


def test_a_reused_pid_is_not_signalled(cloud: Local, tmp_path: Path) -> None:
    rent(cloud)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        before = edit(record(tmp_path), init={"pid": stranger.pid, "start": "1"})
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
    before = edit(record(tmp_path), pid_namespace="pid:[1]")
    assert cloud.instances()[0].state is InstanceState.UNKNOWN
    with pytest.raises(ProviderError, match="another pid namespace"):
        cloud.destroy(LABEL)
    assert lives(before["init"]["pid"])
    assert len(cloud.instances()) == 1


def test_a_damaged_record_is_unknown_and_the_box_still_ends(cloud: Local, tmp_path: Path) -> None:
    rent(cloud).run(f"{NAP} &", timeout_s=10)
    init = json.loads(record(tmp_path).read_text())["init"]["pid"]
    record(tmp_path).write_text("{")
    assert cloud.instances()[0].state is InstanceState.UNKNOWN
    cloud.destroy(LABEL)
    assert not lives(init)
    assert outer_pids(NAP) == []
    assert cloud.instances() == []


def test_what_a_box_laid_on_tmpfs_ends_with_it_and_nothing_of_others(any_cloud: Local) -> None:
    """By whoever ends it; a process that lays it there again and again is ended first."""
    for other in ("fuse", "keeper"):
        label = f"{LABEL}-{other}"
        secret, foreign = (Path(f"/dev/shm/{name}.push.key") for name in (label, f"{label}a"))
        foreign.touch()
        try:
            again = f"setsid sh -c 'while :; do echo key > {secret}; done' &"
            rent(any_cloud, label).run(again, timeout_s=10)
            wait_for(secret.exists)
            if other == "fuse":
                end = ["sh", "-euc", any_cloud.self_destroy(label)]
                subprocess.run(end, env={"PATH": os.defpath}, timeout=30, check=True)
            else:
                any_cloud.destroy(label)
            assert not secret.exists()
            assert foreign.exists()
        finally:
            any_cloud.destroy(label)
            for path in (secret, foreign):
                path.unlink(missing_ok=True)


def test_a_box_that_was_named_by_hand_takes_no_file_of_other_programs(any_cloud: Local) -> None:
    label = f"sem{os.getpid()}"
    foreign = Path(f"/dev/shm/{label}.lock")
    foreign.touch()
    try:
        rent(any_cloud, label)
        end = ["sh", "-euc", any_cloud.self_destroy(label)]
        subprocess.run(end, env={"PATH": os.defpath}, timeout=30, check=True)
        for _ in ("with its directory", "without"):
            any_cloud.destroy(label)
            assert foreign.exists()
    finally:
        foreign.unlink(missing_ok=True)


def test_a_file_on_tmpfs_that_cannot_be_removed_keeps_no_box_alive(any_cloud: Local) -> None:
    rent(any_cloud)
    stuck = Path(f"/dev/shm/{LABEL}.stuck")
    stuck.mkdir()
    try:
        end = ["sh", "-euc", any_cloud.self_destroy(LABEL)]
        assert subprocess.run(end, env={"PATH": os.defpath}, timeout=30).returncode == 0
        any_cloud.destroy(LABEL)
        assert any_cloud.instances() == []
    finally:
        stuck.rmdir()


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
