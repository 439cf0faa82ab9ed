"""Following a run: `up` shows another process's work, and leaving it ends nothing."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpurun.clock import Deadline
from tests.homes import GPURUN, Home

SLOW_BUILD = "echo building; sleep 2; mkdir -p data/train data/test; " + (
    "touch data/train/dataset.json data/test/dataset.json"
)
STEPS = """mkdir -p out; echo 42 > out/result.txt
said='"total_steps": 3, "it_per_s": 1.0, "loss": 0.5'
for i in 1 2 3; do echo "{\\"step\\": $i, $said}" >> out/metrics.jsonl; sleep 1; done"""
FOREVER = "mkdir -p out; echo 42 > out/result.txt; while :; do sleep 0.1; done"


def test_up_shows_phases_and_steps_and_ends_with_the_bill(home: Home) -> None:
    done = home.run("up", home.recipe(train=STEPS, build=SLOW_BUILD), "--yes")
    assert done.returncode == 0, done.stderr + home.logs()
    assert re.search(r"^data +0:\d\d  \$0\.0\d  .*building", done.stderr, re.M)
    assert re.search(r"^train .* step \d/3  loss 0\.5  1 it/s  eta 0:0\d$", done.stderr, re.M)
    assert "\x1b" not in done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["PHASE", "DURATION", "COST", "@", "$3.60/h"]
    assert lines[-1].startswith("destroyed, $")


def test_up_detached_prints_the_id_alone(home: Home) -> None:
    done = home.run("up", home.recipe(), "-y", "-d", "--json")
    run_id = json.loads(done.stdout)["id"]
    followed = home.run("logs", run_id, "-f")
    assert followed.returncode == 0
    assert "phase boot" in followed.stdout and "trained" in followed.stdout
    assert home.document(run_id)["state"] == "done"


def test_ctrl_c_without_a_terminal_keeps_the_run_and_names_its_timer(home: Home) -> None:
    up = home.start("up", home.recipe(build=SLOW_BUILD, train=FOREVER), "--yes")
    run_id = home.only_run()
    home.until_phase(run_id, "data")
    up.send_signal(signal.SIGINT)
    _, said = up.communicate(timeout=30)
    assert up.returncode == 130, said
    assert f"run {run_id} goes on" in said and "its timer is armed" in said
    home.until_phase(run_id, "train")
    assert home.document(run_id)["state"] == "active"


def test_from_the_launch_on_ctrl_c_detaches_and_says_how_to_come_back(home: Home) -> None:
    up = home.start("up", home.recipe(train=FOREVER), "--yes", "--json")
    run_id = home.only_run()
    home.until_phase(run_id, "train")
    home.until(lambda: home.document(run_id)["train"] is not None)
    up.send_signal(signal.SIGINT)
    out, _ = up.communicate(timeout=30)
    error = json.loads(out)["error"]
    assert (up.returncode, error["class"], error["exit_code"]) == (130, "Interrupted", 130)
    assert f"gpurun kill {run_id}" in error["message"]
    assert home.document(run_id)["state"] == "active"


def test_a_closed_terminal_detaches(home: Home) -> None:
    up = home.start("up", home.recipe(build=SLOW_BUILD, train=FOREVER), "--yes")
    run_id = home.only_run()
    home.until_phase(run_id, "data")
    up.send_signal(signal.SIGHUP)
    up.communicate(timeout=30)
    assert up.returncode == 130
    home.until_phase(run_id, "train")


def test_at_a_terminal_ctrl_c_before_training_asks_and_kill_ends_the_run(home: Home) -> None:
    recipe = home.recipe(build=f"sleep 30; {SLOW_BUILD}")
    with at_terminal(home, "up", recipe) as (up, master, seen):
        read_until(master, seen, "[y/N]")
        os.write(master, b"y\n")
        run_id = home.only_run()
        home.until_phase(run_id, "data")
        read_until(master, seen, "data  ")
        up.send_signal(signal.SIGINT)
        read_until(master, seen, "[kill/KEEP]")
        os.write(master, b"kill\n")
        read_until(master, seen, "destroyed, $")
        assert up.wait(30) == 7
    assert home.document(run_id)["state"] == "killed"
    assert home.box_processes() == []


def test_what_is_not_confirmed_is_not_rented(home: Home) -> None:
    with at_terminal(home, "up", home.recipe()) as (up, master, seen):
        read_until(master, seen, "rent it for at most $0.73? [y/N]")
        os.write(master, b"\n")
        read_until(master, seen, "not confirmed")
        assert up.wait(30) == 2
    assert not home.places.database.exists()


@contextmanager
def at_terminal(
    home: Home, *arguments: str | Path
) -> Iterator[tuple["subprocess.Popen[bytes]", int, list[bytes]]]:
    """The command at a terminal of its own: the process, our end, and what was read so far."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [GPURUN, *arguments],
        cwd=home.work,
        env=home.env | {"TERM": "xterm", "COLUMNS": "100"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield process, master, []
    finally:
        process.kill()
        process.wait(10)
        os.close(master)


def read_until(master: int, seen: list[bytes], text: str, within_s: float = 60) -> None:
    """Read what is printed until it holds this text; only what came since the last call counts."""
    deadline, got = Deadline(within_s), b""
    while not deadline.passed():
        try:
            got += os.read(master, 65536)
        except BlockingIOError:
            continue
        except OSError:  # the last process has closed the terminal
            break
        finally:
            seen.append(got)
        if text.lower() in got.decode(errors="replace").lower():
            return
    assert text.lower() in got.decode(errors="replace").lower(), b"".join(seen)
