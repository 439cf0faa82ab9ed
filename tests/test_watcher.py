"""A watcher over real processes in a folder, whose commands say what a test wants."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.clock import Deadline
from gpurun.engine.detached import LOG_CHUNK_BYTES
from gpurun.engine.watch import Done, Failed, Unreachable
from gpurun.engine.watch.gpus import GPU_FIELDS, gpu_sample
from gpurun.shell import Result, Shell
from gpurun.shell.local import LocalShell
from tests.fakecloud import FakeClock
from tests.trainings import Training, recipe

GPUS = {"need": {"gpu": "H100"}, "setup": {"device": "cuda"}}
RUNS = "mkdir -p out; while :; do sleep 0.1; done"
SAYS = 'mkdir -p out; echo \'{"step": 1, "total_steps": 9, "loss": 2.0}\' > out/metrics.jsonl\n'


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(**changes: Any) -> Training:
        made.append(Training(tmp_path / f"box{len(made)}", recipe(**changes), FakeClock()))
        return made[-1]

    yield make
    for training in made:
        training.close()


def clock_of(training: Training) -> FakeClock:
    assert isinstance(training.clock, FakeClock)
    return training.clock


def gpus(training: Training, *rows: str) -> None:
    """From the next look on `nvidia-smi` says this: utilisation, power, its limit, memory used."""
    lines = "\n".join(rows)
    training.shim("nvidia-smi", f"[ $1 = --query-gpu={GPU_FIELDS} ] && cat <<'END'\n{lines}\nEND")
    sample = training.root / ".gpurun/gpu.txt"
    sample.unlink(missing_ok=True)
    assert training.watcher.step() is None  # this look begins the sample, the next one reads it
    deadline = Deadline(10)
    while not sample.exists():
        assert not deadline.passed()


def pass_minutes(training: Training, minutes: float) -> Any:
    """Looks 40 s apart; the first outcome, if there is one."""
    for _ in range(round(minutes * 1.5)):
        clock_of(training).advance(40)
        if (outcome := training.watcher.step()) is not None:
            return outcome
    return None


def test_gpu_figures_are_their_mean_and_their_sums(train: Callable[..., Training]) -> None:
    training = train(**GPUS).launch(RUNS)
    gpus(training, "98, 650.50, 700.00, 61440", "50, 349.50, 700.00, 20480")
    assert training.watcher.step() is None
    document = training.watcher.document()
    shown = (document["gpu_util"], document["power_w"], document["gpu_mem_gib"])
    assert shown == (74.0, 1000.0, 80.0)


def test_what_a_gpu_does_not_tell_is_left_out(train: Callable[..., Training]) -> None:
    training = train(**GPUS).launch(RUNS)
    gpus(training, "[N/A], 650.50, [N/A], [N/A]")
    training.watcher.step()
    document = training.watcher.document()
    shown = (document["gpu_util"], document["power_w"], document["gpu_mem_gib"])
    assert shown == (None, 650.5, None)


def test_idle_gpus_end_a_training_that_was_rented_gpus(train: Callable[..., Training]) -> None:
    training = train(**GPUS, watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0", "4, 90, 700, 500")
    assert pass_minutes(training, 10) is None
    outcome = pass_minutes(training, 1)
    assert isinstance(outcome, Failed) and outcome.how == "idle"
    assert "every GPU was under 5 %" in outcome.error


@pytest.mark.parametrize("row", ["5, 90, 700, 0", "[N/A], 90, 700, 0", "No devices were found"])
def test_one_gpu_that_works_or_does_not_tell_is_enough(
    train: Callable[..., Training], row: str
) -> None:
    training = train(**GPUS, watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0", row) if "," in row else gpus(training, row)
    assert pass_minutes(training, 12) is None


def test_a_recipe_without_gpus_is_never_idle(train: Callable[..., Training]) -> None:
    training = train(watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0")
    assert pass_minutes(training, 12) is None


def test_work_starts_the_idle_minutes_anew(train: Callable[..., Training]) -> None:
    training = train(**GPUS, watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0")
    assert pass_minutes(training, 9) is None
    gpus(training, "60, 400, 700, 0")
    training.watcher.step()
    gpus(training, "0, 70, 700, 0")
    assert pass_minutes(training, 9.5) is None


def test_what_nobody_has_seen_was_not_idle_and_another_driver_counts_on(
    train: Callable[..., Training],
) -> None:
    training = train(**GPUS, watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0")
    assert pass_minutes(training, 6) is None
    training.watcher = training.another_watcher(training.watcher.document())
    clock_of(training).advance(3600)
    assert training.watcher.step() is None
    outcome = pass_minutes(training, 5)
    assert isinstance(outcome, Failed) and outcome.how == "idle"


def test_an_hour_that_nobody_looked_was_not_idle(train: Callable[..., Training]) -> None:
    training = train(**GPUS, watch={}).launch(RUNS)
    gpus(training, "0, 70, 700, 0")
    assert pass_minutes(training, 2) is None
    clock_of(training).advance(3600)
    assert training.watcher.step() is None


def test_a_sample_that_is_old_is_no_sample(train: Callable[..., Training]) -> None:
    said = gpu_sample(["age 50", "0, 70, 700, 0"])
    assert said is not None and not said.fresh and not said.idle(5)


def test_ranks_that_wait_at_low_power_do_not_put_off_the_end_of_a_hang(
    train: Callable[..., Training],
) -> None:
    hang = {"metrics": "out/metrics.jsonl", "hang_minutes": "10"}
    training = train(**GPUS, watch=hang).launch(SAYS + RUNS)
    gpus(training, "100, 140, 700, 61440")
    assert pass_minutes(training, 9) is None
    outcome = pass_minutes(training, 2)
    assert isinstance(outcome, Failed) and outcome.how == "hang"
    assert training.watcher.gpus is not None and training.watcher.gpus.spin


def test_gpus_that_compute_may_go_longer_without_a_step_and_not_for_ever(
    train: Callable[..., Training],
) -> None:
    hang = {"metrics": "out/metrics.jsonl", "hang_minutes": "10"}
    training = train(**GPUS, watch=hang).launch(SAYS + RUNS)
    gpus(training, "99, 560, 700, 61440")
    assert pass_minutes(training, 59) is None
    outcome = pass_minutes(training, 3)
    assert isinstance(outcome, Failed) and outcome.how == "hang"


def test_gpus_that_compute_nothing_but_nan_have_no_longer(train: Callable[..., Training]) -> None:
    hang = {"metrics": "out/metrics.jsonl", "hang_minutes": "10"}
    broken = SAYS.replace("2.0", "NaN")
    training = train(**GPUS, watch=hang).launch(broken + RUNS)
    gpus(training, "99, 560, 700, 61440")
    outcome = pass_minutes(training, 12)
    assert isinstance(outcome, Failed) and "no step with a finite loss" in outcome.error


def test_a_training_that_ends_between_two_questions_is_not_gone(
    train: Callable[..., Training],
) -> None:
    training = train().launch("exit 0")
    exit_code = training.root / ".gpurun/train.exit"
    deadline = Deadline(10)
    while not exit_code.exists():
        assert not deadline.passed()
    exit_code.rename(training.root / "later")  # as if it were written after it was asked for
    assert training.watcher.step() is None
    (training.root / "later").rename(exit_code)
    assert training.watcher.step() == Done("the training finished")


def test_a_takeover_is_no_progress(train: Callable[..., Training]) -> None:
    training = train(watch={"metrics": "out/metrics.jsonl", "hang_minutes": "10"})
    training.launch(SAYS + RUNS)
    assert pass_minutes(training, 6) is None
    assert training.watcher.progress.said["step"] == 1
    training.watcher = training.another_watcher(training.watcher.document())
    outcome = pass_minutes(training, 6)
    assert isinstance(outcome, Failed) and outcome.how == "hang"


def test_what_moved_while_nobody_looked_is_heard_before_a_hang_is_called(
    train: Callable[..., Training],
) -> None:
    training = train(watch={"metrics": "out/metrics.jsonl", "hang_minutes": "10"})
    training.launch(SAYS + RUNS)
    deadline = Deadline(10)
    while not training.watcher.progress.said:
        assert training.watcher.step() is None and not deadline.passed()
    training.watcher = training.another_watcher(training.watcher.document())
    with (training.root / "out/metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    clock_of(training).advance(7200)
    assert training.watcher.step() is None


def test_nothing_hangs_where_no_metrics_are_named(train: Callable[..., Training]) -> None:
    training = train(watch={"hang_minutes": "1"}).launch(RUNS)
    assert pass_minutes(training, 12) is None


def test_an_nvidia_smi_that_hangs_holds_up_no_look_and_is_said(
    train: Callable[..., Training],
) -> None:
    training = train(**GPUS).launch(RUNS)
    training.shim("nvidia-smi", "exec sleep 600")
    assert training.watcher.step() is None
    pid = training.root / ".gpurun/gpu.pid"
    deadline = Deadline(10)
    while not (pid.exists() and pid.read_text().strip()):
        assert not deadline.passed()
    number, since = pid.read_text().split()
    pid.write_text(f"{number} {int(since) - 75}\n")
    assert training.watcher.step() is None
    assert "nvidia-smi has not answered for 7" in training.watcher.document()["trouble"]


def test_kernel_messages_count_from_the_training_on(train: Callable[..., Training]) -> None:
    xid = "NVRM: Xid (PCI:0000:44:00): {}, pid='<unknown>', name=<unknown>, text"
    old, new = f"[  100.000001] {xid.format(31)}", f"[  200.000001] {xid.format(79)}"
    training = train()
    training.shim("dmesg", f'echo "{old}"')
    training.launch(RUNS)
    training.watcher.step()
    assert training.watcher.document()["trouble"] is None
    training.shim("dmesg", f'echo "{old}"; echo "{new}"')
    training.watcher = training.another_watcher(training.watcher.document())
    training.watcher.step()
    expected = "Xid 79 of the GPU at 0000:44:00: the GPU has fallen off the bus"
    assert training.watcher.document()["trouble"] == expected


def test_a_kernel_that_may_not_be_read_is_no_trouble(train: Callable[..., Training]) -> None:
    training = train()
    training.shim("dmesg", "echo 'read kernel buffer failed: Operation not permitted' >&2; exit 1")
    training.launch(RUNS)
    training.watcher.step()
    assert training.watcher.document()["trouble"] is None


def test_the_newest_checkpoint_is_a_file_of_weights(train: Callable[..., Training]) -> None:
    training = train().launch(RUNS)
    training.watcher.step()
    assert training.watcher.document()["last_checkpoint_at"] is None
    (training.root / "out/run").mkdir()
    (training.root / "out/run/step_12").write_text("weights")
    (training.root / "out/run/train.log").write_text("noise")
    clock_of(training).advance(10)
    training.watcher.step()
    assert training.watcher.document()["last_checkpoint_at"] is not None


def test_a_rule_that_holds_ends_it_well(train: Callable[..., Training]) -> None:
    training = train(watch={"metrics": "out/metrics.jsonl", "stop_when": "ARC/pass@1 > 0.05"})
    training.launch(SAYS + "echo '{\"ARC/pass@1\": 0.06}' >> out/metrics.jsonl\n" + RUNS)
    assert training.until_end() == Done("stopped because ARC/pass@1 > 0.05")


def test_a_rule_that_held_when_the_driver_died_still_holds(train: Callable[..., Training]) -> None:
    training = train(watch={"metrics": "out/metrics.jsonl", "stop_when": "acc > 0.5"})
    training.launch(SAYS + "echo '{\"acc\": 0.6}' >> out/metrics.jsonl\n" + RUNS)
    training.until_end()
    training.watcher = training.another_watcher(training.watcher.document())
    assert training.watcher.step() == Done("stopped because acc > 0.5")


def test_progress_is_read_from_the_log_where_there_is_a_pattern(
    train: Callable[..., Training],
) -> None:
    pattern = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"
    training = train(watch={"pattern": pattern})
    training.launch(r"printf 'step 1/40 loss 2\rstep 2/40 lo'; sleep 0.5; printf 'ss 1.5'")
    assert training.until_end() == Done("the training finished")
    document = training.watcher.document()
    assert (document["step"], document["total_steps"], document["loss"]) == (2, 40, 1.5)


def test_a_box_that_does_not_answer_is_no_box_that_failed(train: Callable[..., Training]) -> None:
    training = train(watch={}).launch(RUNS)
    there = True
    training.shell = LocalShell(training.root, env={"PATH": "/usr/bin:/bin"}, alive=lambda: there)
    training.watcher = training.another_watcher({})
    assert training.watcher.step() is None
    there = False
    first = training.watcher.step()
    clock_of(training).advance(100)
    second = training.watcher.step()
    assert isinstance(first, Unreachable) and isinstance(second, Unreachable)
    assert second.since_s == first.since_s
    there = True
    assert training.watcher.step() is None


@pytest.mark.parametrize("name", ["base64", "cat", "tail"])
def test_a_box_whose_commands_talk_nonsense_makes_no_bug(
    train: Callable[..., Training], name: str
) -> None:
    training = train(**GPUS).launch(SAYS + RUNS)
    gpus(training, "98, 650, 700, 61440")
    training.shim(name, "echo '\x1b[31m%%% 99999999999999999999 gpurun-section gpu'")
    for _ in range(3):
        outcome = training.watcher.step()
        clock_of(training).advance(10)
        assert outcome is None or isinstance(outcome, Unreachable | Failed)
    assert "\x1b" not in json.dumps(training.watcher.document())


class Counted:
    """A shell, and what was asked of it."""

    def __init__(self, shell: LocalShell) -> None:
        self._shell = shell
        self.runs = 0
        self.gets = 0

    def run(self, command: str, **how: Any) -> Result:
        self.runs += 1
        return self._shell.run(command, **how)

    def put(self, source: Path, target: str) -> None:
        raise AssertionError("a watcher puts nothing")

    def get(self, source: str, target: Path) -> None:
        self.gets += 1
        self._shell.get(source, target)


def test_a_look_is_one_round_trip(train: Callable[..., Training]) -> None:
    training = train(**GPUS).launch(SAYS + RUNS)
    counted: Shell = Counted(training.shell)
    training.shell = counted  # type: ignore[assignment]
    training.watcher = training.another_watcher({})
    for _ in range(5):
        training.watcher.step()
        clock_of(training).advance(10)
    assert (counted.runs, counted.gets) == (5, 0)  # type: ignore[attr-defined]


def test_a_log_that_is_far_ahead_is_fetched_in_one_go_and_whole(
    train: Callable[..., Training],
) -> None:
    training = train()
    training.launch("seq 1 3000000; exit 0")  # 22 MB
    counted = Counted(training.shell)
    training.shell = counted  # type: ignore[assignment]
    training.watcher = training.another_watcher({})
    assert training.until_end() == Done("the training finished")
    assert training.log.read_bytes() == (training.root / "logs/train.log").read_bytes()
    assert counted.gets >= 1
    assert counted.runs < training.log.stat().st_size / LOG_CHUNK_BYTES


def test_the_address_at_wandb_is_kept(train: Callable[..., Training]) -> None:
    training = train().launch(f"echo 'wandb: View run at https://wandb.ai/a/b/runs/c1'\n{RUNS}")
    deadline = Deadline(10)
    while training.watcher.document()["wandb"] is None:
        assert training.watcher.step() is None and not deadline.passed()
    kept = training.watcher.document()
    assert training.another_watcher(kept).document()["wandb"] == "https://wandb.ai/a/b/runs/c1"
