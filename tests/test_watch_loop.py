"""The driver's loop over a watched training: what it keeps, and when it gives a box up."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpurun.blackbox import BlackBox
from gpurun.clock import Deadline
from gpurun.engine.context import Context
from gpurun.engine.training import hold
from gpurun.engine.watch import watch
from gpurun.engine.watch.gpus import gpu_text
from gpurun.errors import PhaseFailed
from gpurun.model import Instance, InstanceState
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.shell.local import LocalShell
from tests.fakecloud import FakeClock, FakeCloud
from tests.stories import Story, journal_at
from tests.trainings import Training, recipe

RUNS = "while :; do sleep 0.1; done"


class Over(Exception):
    """The test has seen enough."""


class Loop:
    """A training in a folder, a run in a journal, and a provider that says what a test wants."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.training = Training(root / "box", recipe(watch={}), self.clock)
        places = Places(root / "state").ensure()
        self.journal = journal_at(places.root, self.clock)
        self.story = Story(self.journal, self.clock).rented()
        self.cloud = FakeCloud(self.clock, boot_s=0)
        self.cloud.boxes["i-1"] = Instance(
            provider="fake",
            id="i-1",
            label=self.story.label,
            state=InstanceState.RUNNING,
            usd_per_hour=self.story.usd_per_hour,
            created_at=self.clock.now(),
            gpu="H100",
            gpu_count=4,
        )
        self.answers = True
        self.shell = LocalShell(
            self.training.root, env={"PATH": "/usr/bin:/bin"}, alive=lambda: self.answers
        )
        run = replace(self.journal.runs.get(self.story.run_id), runs_dir=str(root / "runs"))
        self.ctx = Context(
            places=places,
            settings=Settings(),
            clock=self.clock,
            journal=self.journal,
            blackbox=BlackBox(places.blackbox, *self.journal.owner.ensure()),
            run=run,
            recipe=self.training.recipe,
            clouds=lambda _name: self.cloud,
            epoch=self.story.epoch,
        )
        self.looks = 0

    def watch(self, most_looks: int = 10_000) -> str:
        def each_look() -> None:
            self.looks += 1
            if self.looks >= most_looks:
                raise Over

        return watch(self.ctx, self.shell, self.ctx.places.root / "train.log", each_look)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.training.close()
    made.journal.close()


def test_a_box_that_does_not_answer_is_given_up_after_half_an_hour(loop: Loop) -> None:
    began_at = loop.clock.now()
    loop.answers = False
    with pytest.raises(PhaseFailed, match="has not answered for 30 minutes"):
        loop.watch()
    assert loop.clock.now() - began_at > timedelta(minutes=30)


def test_a_box_that_its_provider_has_stopped_is_given_up_at_once(loop: Loop) -> None:
    loop.answers = False
    del loop.cloud.boxes["i-1"]
    with pytest.raises(PhaseFailed, match="the provider says that the box has stopped"):
        loop.watch()
    assert loop.looks == 0


def test_a_line_that_is_down_on_this_side_gives_up_nothing(loop: Loop) -> None:
    """Neither box nor provider can be reached: for two hours nobody says that it has failed."""
    loop.answers, loop.cloud.unreachable = False, True
    with pytest.raises(Over):
        loop.watch(7200)


def test_what_is_seen_is_in_the_journal_at_each_look(loop: Loop) -> None:
    loop.training.launch(RUNS)
    with pytest.raises(Over):
        loop.watch(2)
    kept = loop.journal.runs.progress_of(loop.story.run_id)
    assert kept["kept"]["moved_at"] and kept["step"] is None


def test_evidence_takes_no_more_than_its_share_of_the_time_that_is_left(loop: Loop) -> None:
    """The box must be gone in two seconds."""
    loop.training.launch("exit 3")
    loop.clock.advance(11 * 60 - 2)
    with pytest.raises(PhaseFailed, match="the training exited 3"):
        loop.watch()
    evidence = Path(loop.ctx.run.runs_dir) / loop.story.run_id / "evidence"
    assert "no time left" in (evidence / "kernel.txt").read_text()
    kept = loop.journal.runs.progress_of(loop.story.run_id)
    assert kept["verdict"]["cause"] == "unknown"
    assert kept["verdict"]["evidence"] == str(evidence)


def test_since_when_a_training_that_hangs_was_of_no_use_is_in_the_journal(loop: Loop) -> None:
    loop.ctx = replace(loop.ctx, recipe=recipe())
    loop.training.launch(f"mkdir -p out; echo '{{\"step\": 3}}' > out/metrics.jsonl; {RUNS}")
    loop.training.until_step()
    with pytest.raises(PhaseFailed, match="the training hangs"):
        loop.watch()
    kept = loop.journal.runs.progress_of(loop.story.run_id)
    assert kept["idle_since"] == kept["kept"]["moved_at"]


def test_a_training_that_failed_by_itself_was_of_use_until_then(loop: Loop) -> None:
    loop.training.launch("exit 3")
    with pytest.raises(PhaseFailed, match="the training exited 3"):
        loop.watch()
    assert loop.journal.runs.progress_of(loop.story.run_id)["idle_since"] is None


def test_since_when_an_interactive_box_was_not_used_is_in_the_journal(loop: Loop) -> None:
    gpus = {"gpu": "H100", "gpu_count": 2}
    loop.ctx = replace(loop.ctx, recipe=recipe(need=gpus))
    loop.training.shim("nvidia-smi", 'echo "0, 70, 700, 0"; echo "0, 70, 700, 0"')
    loop.training.shell.run(gpu_text(), timeout_s=10)  # begins the sample that the first look sees
    deadline = Deadline(10)
    while not (loop.training.root / ".gpurun" / "gpu.txt").exists():
        assert not deadline.passed()
    began_at = loop.clock.now()
    with pytest.raises(PhaseFailed, match="the box is idle"):
        hold(loop.ctx, loop.training.shell, lambda: None)
    idle_since = loop.journal.runs.progress_of(loop.story.run_id)["idle_since"]
    assert began_at <= datetime.fromisoformat(idle_since) < began_at + timedelta(seconds=30)
