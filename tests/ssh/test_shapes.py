"""One recipe on machines of every shape: it runs, or a sentence says why it does not."""

import json
import time
from collections.abc import Callable

import pytest

from tests.boxes import Fleet, Shape, box
from tests.boxes.fleet import H100_SXM
from tests.boxes.shape import (
    A100X4,
    FROM_NOTHING,
    H100X4,
    H100X4_PCIE,
    MIXED,
    PRINTING_RC,
    UBUNTU_VM,
    WITHOUT_DRIVER,
    WITHOUT_GPUS,
)
from tests.hosts import Hosts, left_on
from tests.ssh import table
from tests.ssh.conftest import Keep

FOUR_H100 = ("--set", "need.gpu=H100", "--set", "need.gpu_count=4", "--set", "need.nvlink=true")
BARE = Shape(without=("tmux", "curl", "wget", "rsync", "git", "setsid", "sudo"), shm_mb=64)
RUNS = {
    "ubuntu VM with systemd": (UBUNTU_VM, FOUR_H100),
    "rc file that prints": (Shape(rc=PRINTING_RC), ()),
    "64 MB of shm, no tmux, curl, git": (BARE, ()),
    "4x H100 with NVLink": (H100X4, FOUR_H100),
}
REFUSED = {
    "4x A100": (A100X4, "it has 4x NVIDIA A100-SXM4-80GB, need.gpu is H100"),
    "2x H100, 2x A100": (MIXED, "only 2 of its GPUs fit: it has 2x NVIDIA H100 80GB HBM3"),
    "no driver": (WITHOUT_DRIVER, "couldn't communicate with the NVIDIA driver"),
    "no GPU": (WITHOUT_GPUS, "it has no NVIDIA driver: nvidia-smi is not there"),
    "2x H100": (Shape(gpus=Fleet((H100_SXM,) * 2)), "it has 2 GPUs, need.gpu_count is 4"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_recipe_runs_to_its_end(name: str, hosts_of: Callable[..., Hosts], keep: Keep) -> None:
    shape, words = RUNS[name]
    with box(shape) as machine:
        home = hosts_of(machine)
        done = home.go(home.recipe(), *words)
        assert done.stdout, done.stderr + home.logs()
        document = json.loads(done.stdout)
        keep(table.of_run(name, "none", document))
        assert done.returncode == 0, done.stderr + home.logs()
        assert home.fetched(document["id"], "out/result.txt") == "42\n"
        assert left_on(machine) == []
        assert not (machine.root / "workspace/kept").exists()  # all of it was fetched


@pytest.mark.parametrize("name", REFUSED)
def test_gpus_that_are_not_what_is_needed_are_said_before_anything_is_rented(
    name: str, hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    shape, sentence = REFUSED[name]
    with box(shape) as machine:
        home = hosts_of(machine)
        began_s = time.monotonic()
        done = home.run("up", home.recipe(), "--yes", "--provider", "ssh", *FOUR_H100)
        keep(table.of_command(name, "4x H100 needed", done, time.monotonic() - began_s))
        assert done.returncode == 3, done.stderr
        assert sentence in done.stderr
        assert home.rentals() == 0
        assert left_on(machine) == []


def test_a_gpu_that_is_lost_is_said_before_anything_is_rented(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box(H100X4) as machine:
        machine.gpus.lose(2)
        home = hosts_of(machine)
        began_s = time.monotonic()
        done = home.run("up", home.recipe(), "--yes", "--provider", "ssh", *FOUR_H100)
        keep(table.of_command("4x H100, one lost", "none", done, time.monotonic() - began_s))
        assert done.returncode == 3, done.stderr
        assert "Unable to determine the device handle for GPU" in done.stderr


def test_gpus_without_nvlink_are_accepted_unless_it_is_needed(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """What only a closer look tells fails the run with the whole list, and leaves nothing."""
    with box(H100X4_PCIE) as machine:
        home = hosts_of(machine)
        needs = [*FOUR_H100, "--set", "need.shm_gb=64"]
        done = home.go(home.recipe(), *needs)
        document = json.loads(done.stdout)
        keep(table.of_run("4x H100 PCIe", "NVLink and 64 GB of shm needed", document))
        assert done.returncode == 5
        assert "its GPUs are not joined by NVLink, need.nvlink is on" in document["error"]
        assert "its /dev/shm has 17.18 GB, the training needs 64.00 GB" in document["error"]
        assert left_on(machine) == []


def test_a_box_without_python_says_so_and_nothing_is_left(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box(Shape(without=("python3",))) as machine:
        home = hosts_of(machine)
        done = home.go(home.recipe())
        document = json.loads(done.stdout)
        keep(table.of_run("no python3", "none", document))
        assert done.returncode == 5
        assert "it has no python3, and setup.apt does not install it" in document["error"]
        assert left_on(machine) == []


@pytest.mark.slow
def test_a_debian_of_nothing_but_sshd_is_set_up_and_trains(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    """No pip, venv module, git, curl or tmux: the setup installs what the recipe needs."""
    train = "mkdir -p out; git --version; python -c 'import six'; echo 42 > out/result.txt"
    with box(FROM_NOTHING) as machine:
        home = hosts_of(machine)
        words = ("--set", "setup.apt=[git]", "--set", "setup.pip=[six]")
        done = home.go(home.recipe(train=f"set -e\n{train}"), *words, timeout_s=280)
        document = json.loads(done.stdout)
        keep(table.of_run("Debian of sshd and python3 alone", "none", document))
        assert done.returncode == 0, done.stderr + home.logs()
        assert left_on(machine) == []
