"""The text that a fuse runs, beside the box it ends."""

import os
import subprocess
from pathlib import Path

import pytest

from gpurun.model import InstanceState
from provisioners.local import Local
from tests.contract import LABEL
from tests.provisioners.local.boxes import (
    CLOCK,
    NAP,
    edit,
    lives,
    outer_pids,
    record,
    rent,
    wait_for,
)


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
    before = edit(record(tmp_path), boot_id="another boot")
    assert fuse(cloud.self_destroy(LABEL)) == 0
    assert lives(before["init"]["pid"])


def test_the_fuse_does_not_signal_a_reused_pid(sure_cloud: Local, tmp_path: Path) -> None:
    rent(sure_cloud)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        edit(record(tmp_path), init={"pid": stranger.pid, "start": "1"})
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


def test_from_beside_the_box_a_text_runs_inside_it(cloud: Local) -> None:
    shell = rent(cloud)
    text = cloud.inside(LABEL, 'pwd > tmp/said; echo "it\'s $GPURUN_LABEL" >> tmp/said; exit 7')
    assert fuse(text) == 7
    said = (shell.root / "tmp" / "said").read_text()
    assert said == f"{shell.root}\nit's {LABEL}\n"


def test_what_is_written_to_the_fuse_holds_no_secret(
    cloud: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    rent(cloud)
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:sesame@index.example/simple")
    assert "sesame" not in cloud.inside(LABEL, "true") + cloud.self_destroy(LABEL)


def test_nothing_runs_inside_a_box_of_another_boot_or_init(cloud: Local, tmp_path: Path) -> None:
    shell = rent(cloud)
    edit(record(tmp_path), boot_id="another boot")
    assert fuse(cloud.inside(LABEL, "touch made")) == 1
    edit(record(tmp_path), boot_id=CLOCK.boot_id, init={"pid": os.getpid(), "start": "1"})
    assert fuse(cloud.inside(LABEL, "touch made")) == 1
    assert not (shell.root / "made").exists()


def test_the_shell_of_the_fuse_bears_no_mark_and_outlives_the_box(
    cloud: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_LABEL", LABEL)  # as if gpurun itself ran inside that box
    rent(cloud)
    beside = cloud.fuse_shell(LABEL)
    left = beside.run(f"setsid {NAP} & echo $!", timeout_s=10)
    try:
        wait_for(lambda: outer_pids(NAP) == [int(left.output)])  # it is about to begin
        cloud.destroy(LABEL)
        assert outer_pids(NAP) == [int(left.output)]
        assert beside.run("echo here", timeout_s=10).output == "here\n"
    finally:
        os.kill(int(left.output), 9)
