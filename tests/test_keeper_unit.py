"""The keeper as a unit of a real systemd, which is started for it in namespaces of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.keeper import unit
from gpurun.places import Places
from tests.homes import Home
from tests.provisioners.local.test_systemd import INSIDE, SYSTEMD, remove

# What a user does; /var/lib/systemd is that of the namespace.  Each answer is one JSON line.
STORY = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from gpurun import keeper
from gpurun.places import Places

os.environ |= json.loads(sys.argv[1])  # a shell has more than systemd was started with
subprocess.run(["mount", "-t", "tmpfs", "none", "/var/lib/systemd"], check=True)
places = Places.here()

def gpurun(*words):
    words = [sys.executable, "-m", "gpurun.cli", *words]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout

def until(holds):
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < 40
        time.sleep(0.05)

keeper.start(places)  # one that a command has started gives way
before = keeper.running(places)
first = json.loads(gpurun("keeper", "install", "--json"))
text = Path(first["unit"]).read_text()
os.kill(first["pid"], signal.SIGKILL)
until(lambda: keeper.running(places) not in (None, first["pid"]))
second = keeper.running(places)
gpurun("keeper", "stop")
until(lambda: keeper.running(places) not in (None, second))
Path("/var/lib/systemd/linger").mkdir()
Path("/var/lib/systemd/linger/root").touch()
subprocess.run(["systemctl", "--user", "import-environment", "HTTPS_PROXY"], check=True)
again = json.loads(gpurun("keeper", "install", "--json"))
status = json.loads(gpurun("keeper", "status", "--json"))
removed = json.loads(gpurun("keeper", "uninstall", "--json"))
print(json.dumps({"before": before, "first": first, "second": second, "text": text, "again": again,
                  "status": status, "removed": removed, "after": keeper.running(places),
                  "left": Path(first["unit"]).exists()}))
"""

SHELL = {
    "VAST_API_KEY": "hunter2-vast",
    "VAST_URL": "http://127.0.0.1:1",
    "GPURUN_MIN_GUARDS": "1",
    "SSH_AUTH_SOCK": "/nowhere",
    "HTTPS_PROXY": "http://hunter2@proxy:1",
}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    assert os.getuid() == 0, "namespaces for a systemd of its own need root: -m 'not box'"
    home, name = Home(tmp_path_factory.mktemp("unit")), f"keeper{os.getpid()}"
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
    command = [*namespaces, "sh", "-c", INSIDE, "sh", str(SYSTEMD), name]
    try:
        done = subprocess.run(
            [*command, sys.executable, "-c", STORY, json.dumps(SHELL)],
            cwd=home.work,
            env={name: value for name, value in home.env.items() if name not in SHELL},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr + home.logs()
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        yield found
    finally:
        home.close()
        remove(name)


@pytest.mark.box
def test_it_takes_over_from_the_keeper_that_ran(story: dict[str, Any]) -> None:
    assert story["first"]["installed"]
    assert story["first"]["pid"] not in (None, story["before"])


@pytest.mark.box
def test_a_keeper_that_is_killed_or_stopped_is_started_again(story: dict[str, Any]) -> None:
    assert story["second"] not in (None, story["first"]["pid"])
    assert story["again"]["pid"] not in (None, story["second"])


@pytest.mark.box
def test_no_key_is_in_the_unit_and_the_one_that_is_missing_is_said(story: dict[str, Any]) -> None:
    assert "hunter2" not in story["text"]
    assert story["first"]["keys_in_shell_only"] == ["vast"]


@pytest.mark.box
def test_what_only_the_shell_has_is_named_until_systemd_has_it(story: dict[str, Any]) -> None:
    first, again = (set(story[each]["settings_in_shell_only"]) for each in ("first", "again"))
    assert {"GPURUN_MIN_GUARDS", "VAST_URL", "SSH_AUTH_SOCK", "HTTPS_PROXY"} <= first
    assert first - again == {"HTTPS_PROXY"}
    assert "hunter2" not in json.dumps([story["first"], story["again"]])


@pytest.mark.box
def test_lingering_is_seen(story: dict[str, Any]) -> None:
    assert (story["first"]["lingers"], story["again"]["lingers"]) == (False, True)


@pytest.mark.box
def test_uninstalled_nothing_is_left_and_nothing_runs(story: dict[str, Any]) -> None:
    assert story["removed"] == {"removed": story["first"]["unit"], "pid": None}
    assert (story["after"], story["left"]) == (None, False)


def test_the_unit_names_state_and_settings_and_restarts_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_CONFIG", str(tmp_path / 'a "b" 100%.toml'))
    text = unit.text(Places(tmp_path))
    assert f'Environment="GPURUN_HOME={tmp_path}"' in text
    assert f'Environment="GPURUN_CONFIG={tmp_path}/a \\"b\\" 100%%.toml"' in text
    assert "Restart=always" in text and "StartLimitIntervalSec=0" in text


def test_each_state_directory_has_a_unit_of_its_own(tmp_path: Path) -> None:
    names = {unit.unit_path(Places(tmp_path / each)).name for each in ("a", "b")}
    assert len(names) == 2 and all(name.startswith("gpurun-keeper-") for name in names)


def test_without_systemd_it_says_how_to_run_it(home: Home) -> None:
    home.env |= {"XDG_RUNTIME_DIR": str(home.root / "nowhere"), "DBUS_SESSION_BUS_ADDRESS": ""}
    home.env |= {"SSH_AUTH_SOCK": "/run/agent", "https_proxy": "http://hunter2@proxy:1"}
    done = home.run("keeper", "install")
    assert done.returncode == 0, done.stderr
    assert "in this shell alone: " in done.stdout and "SSH_AUTH_SOCK" in done.stdout
    assert "https_proxy" in done.stdout and "hunter2" not in done.stdout
    assert "nothing was installed" in done.stdout
    assert f"GPURUN_HOME={home.places.root}" in done.stdout and "keeper run" in done.stdout
