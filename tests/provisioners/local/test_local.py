"""Provider `local`: the contract, and what a box is."""

import json
import os
import subprocess
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.errors import (
    NoCapacity,
    ProviderError,
)
from gpurun.model import InstanceState
from gpurun.provider import Containment, OwnFuse, OwnShell
from provisioners.local import Local, processes, strategies
from tests.contract import LABEL, NEED, UniqueLabelContract, order
from tests.provisioners.local.boxes import (
    CLOCK,
    NAP,
    RATE,
    outer_pids,
    record,
    rent,
    wait_for,
)


class TestContract(UniqueLabelContract):
    def settle(self, cloud: Local) -> None:
        pass  # a directory is seen at once

    def test_it_has_its_own_shell_fuse_and_word_on_containment(self, cloud: Local) -> None:
        assert isinstance(cloud, OwnShell)
        assert isinstance(cloud, OwnFuse)
        assert isinstance(cloud, Containment)


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


def test_the_init_reaps_what_it_adopts(sure_cloud: Local, tmp_path: Path) -> None:
    shell = rent(sure_cloud)
    shell.run("for i in 1 2 3; do (setsid sh -c 'sleep 0.1' &); done; sleep 0.3", timeout_s=10)
    zombies = "ps -o stat= -A | grep -c '^Z' || :"
    if "shared-proc" not in json.loads(record(tmp_path).read_text())["containment"]:
        wait_for(lambda: shell.run(zombies, timeout_s=10).output.strip() == "0")


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
