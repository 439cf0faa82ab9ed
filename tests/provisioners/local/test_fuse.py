"""The text that a fuse runs, beside the box it ends."""

import os
import subprocess
from pathlib import Path

from gpurun.model import InstanceState
from provisioners.local import Local
from tests.contract import LABEL
from tests.provisioners.local.boxes import (
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
