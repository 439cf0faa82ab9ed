"""Where a run lies on a pod, by the real text in a real shell; only `df` and `sudo` are told."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from provisioners.prime.disk import MAKE_ROOT

HEAD = "Filesystem 1024-blocks Used Available Capacity Mounted on"


class Machine:
    """A home and mounts, as folders of a test."""

    def __init__(self, folder: Path) -> None:
        self.home, self.tools = folder / "home", folder / "bin"
        self.mounts = folder / "mounts"
        for each in (self.home, self.tools, self.mounts):
            each.mkdir()

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    def make(self, free_kb: Mapping[str, int], home_kb: int = 1000) -> Path:
        """Where the run then lies; `free_kb` by "device mount"."""
        rows = "\n".join(
            f"{name.split()[0]} 9 9 {kb} 9% {self.mounts}/{name.split()[1]}"
            for name, kb in free_kb.items()
        )
        home = f"/dev/vda1 9 9 {home_kb} 9% /"
        self.tool("df", f"echo '{HEAD}'; [ $# = 2 ] && echo '{home}' && exit\necho '{rows}'")
        for _ in range(2):  # twice is as good as once
            subprocess.run(
                ["/bin/dash", "-c", MAKE_ROOT],
                env={"HOME": str(self.home), "PATH": f"{self.tools}:/usr/bin:/bin"},
                capture_output=True,
                timeout=30,
                check=False,
            )
        return (self.home / "gpurun").resolve(strict=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_lies_on_the_largest_disk(machine: Machine) -> None:
    for name in ("ephemeral", "workspace"):
        (machine.mounts / name).mkdir()
    root = machine.make({"/dev/vdb ephemeral": 9000, "/dev/vdc workspace": 5000})
    assert root == machine.mounts / "ephemeral" / "gpurun"
    assert root.stat().st_mode & 0o777 == 0o700


def test_memory_files_and_what_is_smaller_are_no_disks(machine: Machine) -> None:
    (machine.mounts / "shm").mkdir()
    (machine.mounts / "small").mkdir()
    (machine.mounts / "hosts").write_text("127.0.0.1 localhost")
    rows = {"tmpfs shm": 9000, "/dev/vdb hosts": 8000, "/dev/vdc small": 999}
    assert machine.make(rows) == machine.home / "gpurun"


def test_one_that_cannot_be_written_is_passed_over(machine: Machine) -> None:
    (machine.mounts / "next").mkdir()
    (machine.mounts / "first").mkdir()
    (machine.mounts / "first" / "gpurun").write_text("a file is in the way")
    machine.tool("sudo", "exit 1")
    root = machine.make({"/dev/vdb first": 9000, "/dev/vdc next": 5000})
    assert root == machine.mounts / "next" / "gpurun"


def test_without_df_the_home_does(machine: Machine) -> None:
    machine.tool("df", "exit 1")
    assert machine.make({}) == machine.home / "gpurun"
