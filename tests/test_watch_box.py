"""Watching over SSH: real boxes, whose GPUs, kernel, disk and network do what a test wants."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpurun.clock import Deadline
from gpurun.engine.detached import launch_text
from gpurun.engine.watch import Failed, Judged, Outcome, Unreachable, Watcher, judge
from gpurun.provider import Login
from gpurun.shell.connect import Waits
from gpurun.shell.fabric import FabricShell
from tests.boxes import Box, Shape, box, shape
from tests.fakecloud import FakeClock
from tests.trainings import recipe

pytestmark = pytest.mark.box
QUICK = Waits(connect_s=2, greeting_s=2, login_s=5, dead_s=2, channel_s=3, stall_s=6)
GPUS = {"need": {"gpu": "H100", "gpu_count": 4}, "setup": {"device": "cuda"}}
HANGS = {"metrics": "out/metrics.jsonl", "hang_minutes": "10"}
READABLE = dataclasses.replace(shape.H100X4, dmesg="anyone")
SAYS = 'mkdir -p out; echo \'{"step": 1, "loss": 2.0}\' > out/metrics.jsonl\n'
STANDS = """\
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
def in_the_middle():
    time.sleep(600)
in_the_middle()
"""


class Watched:
    """A training on a box, watched on a clock that the test moves."""

    def __init__(self, rented: Box, shell: FabricShell, here: Path, **changes: Any) -> None:
        self.box, self.shell, self.here = rented, shell, here
        self.recipe = recipe(**changes)
        self.clock = FakeClock()
        self.watcher = Watcher(self.recipe, shell, self.clock, here / "train.log", {})

    def launch(self, command: str) -> "Watched":
        done = self.shell.run(f"mkdir -p .gpurun\n{launch_text('train', command)}", timeout_s=20)
        assert done.ok, done.output
        return self

    def sampled(self, **gpus: Any) -> "Watched":
        """The GPUs do this, and the watcher has seen it."""
        self.box.gpus.set(**gpus)
        self.shell.run("rm -f .gpurun/gpu.txt", timeout_s=10)
        deadline = Deadline(20)
        while True:
            assert self.watcher.step() is None and not deadline.passed()
            if self.watcher.gpus is not None and self.watcher.gpus.fresh:
                return self

    def pass_minutes(self, minutes: float) -> Outcome | None:
        for _ in range(round(minutes * 1.5)):
            self.clock.advance(40)
            if (outcome := self.watcher.step()) is not None:
                return outcome
        return None

    def until_end(self) -> Failed:
        deadline = Deadline(30)
        while not isinstance(outcome := self.watcher.step(), Failed):
            assert not deadline.passed(), outcome
        return outcome

    def judged(self, failed: Outcome | None) -> Judged:
        assert isinstance(failed, Failed), failed
        into, log = self.here / "evidence", self.here / "train.log"
        return judge(
            self.watcher, failed, self.shell, clock=self.clock, into=into, within_s=60, log=log
        )


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    with ExitStack() as closing:

        def make(wanted: Shape = READABLE, **changes: Any) -> Watched:
            rented = closing.enter_context(box(wanted))
            at = ((rented.host, rented.port),)
            login = Login("box-1", rented.user, at, "/workspace", rented.key)
            shell = FabricShell(login, tmp_path / "known_hosts", QUICK)
            closing.callback(shell.close)
            return Watched(rented, shell, tmp_path, **changes)

        yield make


def test_idle_gpus_are_seen_over_ssh_and_judged_by_where_it_stands(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(**GPUS, watch={})
    watched.shell.run(f"cat > train.py <<'END'\n{STANDS}END", timeout_s=10)
    watched.launch("python3 train.py").sampled(util_percent=3)
    judged = watched.judged(watched.pass_minutes(12))
    assert judged.failed.how == "idle"
    assert "in_the_middle (" in judged.verdict.says, judged.message
    assert "NVSMI LOG" in (judged.evidence / "nvidia-smi.txt").read_text()
    assert "train.py" in (judged.evidence / "processes.txt").read_text()


def test_gpus_that_work_keep_a_training_alive(watch: Callable[..., Watched]) -> None:
    watched = watch(**GPUS, watch=HANGS).launch(SAYS + "sleep 600")
    watched.sampled(util_percent=98, power_w=640, used_mib=61440)
    assert watched.pass_minutes(15) is None
    document = watched.watcher.document()
    figures = (document["gpu_util"], document["power_w"], document["gpu_mem_gib"])
    assert figures == (98, 2560, 240)


def test_a_collective_that_hangs_is_told_by_its_low_power(watch: Callable[..., Watched]) -> None:
    watched = watch(**GPUS, watch=HANGS).launch(SAYS + "sleep 600")
    watched.sampled(util_percent=100, power_w=140, used_mib=61440)
    judged = watched.judged(watched.pass_minutes(12))
    assert (judged.failed.how, judged.verdict.cause) == ("hang", "hang-collective")
    assert "560 of 2800 W" in judged.verdict.says


def test_an_xid_explains_the_end_and_an_old_one_does_not(watch: Callable[..., Watched]) -> None:
    watched = watch(**GPUS, watch=HANGS)
    watched.box.gpus.xid(48, 1)
    watched.launch(SAYS + "sleep 600").sampled(util_percent=0)
    assert watched.watcher.document()["trouble"] is None
    watched.box.gpus.xid(79, 2)
    judged = watched.judged(watched.pass_minutes(12))
    assert judged.verdict.cause == "xid"
    assert "Xid 79 of the GPU at 0000:3A:00" in judged.verdict.says
    assert "Xid 79" in (watched.watcher.document()["trouble"] or "")


def test_a_gpu_that_is_lost_is_known_where_the_kernel_may_not_be_read(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(dataclasses.replace(READABLE, dmesg="nobody"), **GPUS, watch=HANGS)
    watched.launch(SAYS + "sleep 600").sampled(util_percent=0)
    watched.box.gpus.lose(1)
    watched.shell.run("rm -f .gpurun/gpu.txt", timeout_s=10)
    deadline = Deadline(20)
    while not watched.watcher.document()["trouble"]:
        assert watched.watcher.step() is None and not deadline.passed()
    judged = watched.judged(watched.pass_minutes(12))
    assert judged.verdict.cause == "gpu-lost", judged.message
    assert "Operation not permitted" in (judged.evidence / "kernel.txt").read_text()


def test_a_small_dev_shm_ends_a_training_with_a_bus_error(watch: Callable[..., Watched]) -> None:
    program = "m = s.SharedMemory(create=True, size=100 << 20); m.buf[:] = bytes(100 << 20)"
    command = f"python3 -c 'import multiprocessing.shared_memory as s; {program}'"
    watched = watch(dataclasses.replace(READABLE, shm_mb=64)).launch(command)
    judged = watched.judged(watched.until_end())
    assert (judged.failed.exit_code, judged.verdict.cause) == (135, "shared-memory")
    assert "65536" in (judged.evidence / "machine.txt").read_text()


def test_a_full_disk_ends_a_training_and_is_named(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.launch("sleep 1; python3 -c \"open('step_1', 'wb').write(bytes(50 << 20))\"")
    watched.box.fill_disk()
    judged = watched.judged(watched.until_end())
    assert judged.verdict.cause == "disk-full", judged.message


def test_a_reboot_is_told_from_a_crash(watch: Callable[..., Watched]) -> None:
    watched = watch().launch("sleep 600")
    assert watched.watcher.step() is None
    watched.box.reboot()
    judged = watched.judged(watched.until_end())
    assert (judged.failed.how, judged.verdict.cause) == ("rebooted", "reboot")


def test_a_box_that_freezes_or_is_cut_off_is_watched_on(watch: Callable[..., Watched]) -> None:
    watched = watch(watch={}).launch("for n in $(seq 600); do echo line $n; sleep 0.1; done")
    assert watched.watcher.step() is None
    for fault, cure in (
        (watched.box.freeze, watched.box.thaw),
        (watched.box.cut, watched.box.heal),
        (watched.box.refuse, watched.box.accept),
    ):
        fault()
        watched.box.reset_connections()
        outcome = watched.watcher.step()
        assert isinstance(outcome, Unreachable) and outcome.why
        cure()
        deadline = Deadline(30)
        while isinstance(watched.watcher.step(), Unreachable):
            assert not deadline.passed()
    said = (watched.here / "train.log").read_text().splitlines()
    assert said == [f"line {n}" for n in range(1, len(said) + 1)]


def test_evidence_of_a_box_that_goes_away_is_given_up_soon(watch: Callable[..., Watched]) -> None:
    watched = watch().launch("echo it was here; exit 3")
    failed = watched.until_end()
    watched.box.cut()
    judged = watched.judged(failed)
    assert "not asked: the box did not answer" in (judged.evidence / "machine.txt").read_text()
    assert "it was here" in judged.message


def test_a_machine_of_the_barest_kind_is_watched_as_well(watch: Callable[..., Watched]) -> None:
    """No ps, no GPU, python3 of its own."""
    watched = watch(Shape(base="minbase"), watch=HANGS)
    watched.shell.run(f"cat > train.py <<'END'\n{STANDS}END", timeout_s=10)
    watched.launch(SAYS + "python3 train.py")
    judged = watched.judged(watched.pass_minutes(12))
    assert judged.verdict.cause == "hang"
    assert "in_the_middle (" in judged.verdict.says
