"""Containment by systemd, against a real one that is started for it, in namespaces of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
ROOT = Path(__file__).parents[3]

# Its user manager believes that the machine was booted with systemd, finds cgroup v2 alone, and
# gives a slice to whoever asks.  What is mounted and started here ends with the namespaces.
INSIDE = """
set -e
mount --make-rprivate /
umount -l /sys/fs/cgroup 2>/dev/null || :
mount -t cgroup2 none /sys/fs/cgroup
mine=/sys/fs/cgroup/gpurun-test-$2
mkdir "$mine"
echo $$ > "$mine/cgroup.procs"
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/user
export XDG_RUNTIME_DIR=/run/user
"$1" --user --log-target=console > /run/log 2>&1 &
waited=0
until [ -S /run/user/systemd/private ] || [ $waited = 100 ]; do
    sleep 0.1
    waited=$((waited + 1))
done
shift 2
code=0
"$@" || code=$?
[ $code = 0 ] || cat /run/log
exit $code
"""


@pytest.mark.skipif(os.getuid() != 0, reason="namespaces for a systemd of its own need root")
def test_the_tests_of_local_pass_in_slices_of_a_real_systemd(tmp_path: Path) -> None:
    name = str(os.getpid())
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"),
        *("sh", "-c", INSIDE, "sh", str(SYSTEMD), name),
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("--basetemp", str(tmp_path / "inside"), "-k", "systemd and not real", "-rf"),
        str(Path(__file__).parent),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["GPURUN_TESTER"] = f"systemd{name}"  # pids inside say nothing outside
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
    finally:
        remove(name)


def remove(name: str) -> None:
    """The control groups outlive the namespaces; they are empty."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        top = Path(mount, f"gpurun-test-{name}")
        for directory, _, _ in os.walk(top, topdown=False):
            Path(directory).rmdir()
