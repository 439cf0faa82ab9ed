"""What a run says, to a file, a terminal and wandb, whose servers are of this machine."""

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.config import PretrainConfig, load_config
from remote.report import Report, wandb_is_wanted
from remote.wandb_mirror import FAREWELL_S
from tests.remote.wandb_server import ME, PROJECT, wandb_server

SMALL = ["arch.hidden_size=16", "arch.num_heads=2", "global_batch_size=4"]
KEY = "f" * 40
THREE_STEPS = """
import os, signal, sys
from remote.config import load_config
from remote.report import Report
config = load_config(["checkpoint_path=" + sys.argv[1]])
config.settle_names("now")
report = Report(config, 3, speaks=True)
report.begin(0)
for step in range(1, 4):
    report.step(step, 0.1, {"lm_loss": 1.0 / step})
report.event("eval", 3, {"ARC/pass@1": 0.5})
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
report.close()
print("the end")
"""


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DISABLED", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def config_in(run: Path, *more: str) -> PretrainConfig:
    config = load_config([*SMALL, f"checkpoint_path={run}", *more])
    config.settle_names("now")
    return config


def report_a_step(config: PretrainConfig, step: int = 1, from_step: int = 0) -> dict:
    report = Report(config, 10, speaks=True, from_step=from_step, parameters=7)
    report.begin(0)
    report.step(step, 0.1, {"lm_loss": 1.5, "q_halt_loss": 0.5})
    report.close()
    return lines_of(Path(config.checkpoint_path) / "metrics.jsonl")[-1]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_speed_loss_rate_and_memory(tmp_path: Path) -> None:
    line = report_a_step(config_in(tmp_path))
    assert (line["step"], line["total_steps"], line["loss"], line["lr"]) == (1, 10, 1.5, 0.1)
    assert line["samples_per_s"] == pytest.approx(4 * line["it_per_s"])
    assert line["train/q_halt_loss"] == 0.5
    assert (line["train/lr"], line["num_params"]) == (0.1, 7)  # by the names that upstream gives
    assert line["mfu"] is None  # of a CPU no peak is known
    assert 0.05 < line["memory_gib"] < 64


def test_a_new_run_sets_old_metrics_aside_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    report_a_step(config_in(tmp_path))
    report_a_step(config_in(tmp_path), step=2, from_step=1)
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [1, 2]
    report_a_step(config_in(tmp_path), step=7)
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [7]
    assert [line["step"] for line in lines_of(tmp_path / "metrics.1.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"WANDB_API_KEY": KEY}, True),
        ({"WANDB_MODE": "online"}, True),
        ({"WANDB_MODE": "offline"}, True),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": KEY}, False),
        ({"WANDB_DISABLED": "true", "WANDB_MODE": "online"}, False),
        ({"WANDB_DISABLED": "false", "WANDB_MODE": "online"}, True),
    ],
)
def test_wandb_is_used_as_its_own_variables_say(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wandb_is_wanted() == wanted


@contextlib.contextmanager
def swallowing_server(answers: int) -> Iterator[tuple[str, list[bytes]]]:
    """Answers so many requests, and takes in what comes after without a word.

    Its address, and the requests that came.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    kept, came = [], []

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed at the end of the test
            while True:
                connection = listener.accept()[0]
                kept.append(connection)
                came.append(connection.recv(65536))
                if len(came) <= answers:
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", came
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()
        thread.join()


def run_three_steps(run: Path, *more: str, **variables: str) -> tuple[str, float]:
    """What it and the processes it leaves behind print until the last has ended; seconds."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", THREE_STEPS, str(run), *more],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=4 * FAREWELL_S,
    )
    return done.stdout, time.monotonic() - began_s


@pytest.mark.slow
def test_what_is_in_the_file_is_at_wandb_too(tmp_path: Path) -> None:
    with wandb_server() as logged:
        printed, _ = run_three_steps(
            tmp_path, WANDB_MODE="online", WANDB_API_KEY=KEY, WANDB_BASE_URL=logged.address
        )
    *steps, evaluated = lines_of(tmp_path / "metrics.jsonl")
    assert [(at["_step"], at["loss"]) for at in logged.history] == [
        (step["step"], step["loss"]) for step in steps
    ]
    assert logged.history[-1]["ARC/pass@1"] == evaluated["ARC/pass@1"]  # of the same step
    assert logged.config["global_batch_size"]["value"] == load_config([]).global_batch_size
    assert f"{logged.address}/{ME}/{PROJECT}/runs/" in printed
    assert list(tmp_path.glob("wandb/offline-run-*")) == []
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [
        text for text in [printed.encode(), *logged.files.values(), *kept] if KEY.encode() in text
    ]


@pytest.mark.slow
@pytest.mark.parametrize("answers", [0, 1])
def test_a_server_that_swallows_everything_does_not_hold_up_training(
    answers: int, tmp_path: Path
) -> None:
    with swallowing_server(answers) as (address, came):
        printed, _ = run_three_steps(
            tmp_path,
            WANDB_MODE="online",
            WANDB_API_KEY=KEY,
            WANDB_BASE_URL=address,
            WANDB_INIT_TIMEOUT="2",
        )
    assert len(came) > answers
    steps = [line["elapsed_s"] for line in lines_of(tmp_path / "metrics.jsonl")]
    assert len(steps) == 4
    assert max(steps) < 2  # before wandb can have given up
    assert "the end" in printed
    assert "going on offline" in printed
    (recorded,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"ARC/pass@1" in recorded.read_bytes()
    assert f"wandb sync {recorded.parent}" in printed
    assert KEY not in printed


@pytest.mark.slow
def test_offline_asks_nobody_and_a_killed_training_leaves_no_process(tmp_path: Path) -> None:
    with swallowing_server(answers=0) as (address, came):
        printed, seconds = run_three_steps(
            tmp_path, "killed", WANDB_MODE="offline", WANDB_API_KEY=KEY, WANDB_BASE_URL=address
        )
    assert came == []
    assert "the end" not in printed
    assert seconds < FAREWELL_S
    (recorded,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"ARC/pass@1" in recorded.read_bytes()


def test_a_terminal_shows_a_bar_and_no_line_for_each_step(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    process = subprocess.Popen(
        [sys.executable, "-c", THREE_STEPS, str(tmp_path)],
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert "3/3" in text
    assert "loss 0.3333" in text
    assert "eval at step 3 ARC/pass@1 0.5" in text
    assert "step 3/3 loss" not in text
