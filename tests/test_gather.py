"""What a training saves is fetched while it goes on, once it has stayed as it is for a round."""

from dataclasses import replace
from pathlib import Path

from gpurun.clock import SystemClock
from gpurun.engine.context import Context, open_context
from gpurun.engine.gather import GATHER_EVERY_S, Gatherer
from gpurun.settings import Settings
from tests.fakecloud import FakeClock
from tests.homes import WAITS, Home


class Rounds:
    """A gatherer of a live run whose rounds come when the test says so."""

    def __init__(self, home: Home) -> None:
        run = home.up(home.recipe(train=WAITS))
        home.until_phase(run, "train")
        home.until(lambda: bool(list(home.places.boxes.glob("*/root/out/result.txt"))))
        [self.box] = home.places.boxes.glob("*/root")
        self.clock = FakeClock()
        settings = Settings(runs_dir=home.work / "runs")
        opened = open_context(run, home.places, settings, SystemClock())
        self.ctx: Context = replace(opened, clock=self.clock)
        attempt = self.ctx.attempt()
        assert attempt is not None
        self.said: list[str] = []
        self.gatherer = Gatherer(self.ctx, attempt, self.said.append)

    def pass_one(self) -> None:
        self.clock.advance(GATHER_EVERY_S)
        self.gatherer.look()
        self.gatherer.wait()

    def fetched(self, name: str) -> Path:
        return self.ctx.artifacts_dir / "out" / name


def test_a_checkpoint_is_fetched_once_it_has_settled_and_again_when_it_changes(
    home: Home, monkeypatch
) -> None:
    monkeypatch.setenv("GPURUN_HOME", str(home.places.root))
    rounds = Rounds(home)
    checkpoint = rounds.box / "out" / "step_10"
    checkpoint.write_text("ten")
    rounds.pass_one()
    assert not rounds.fetched("step_10").exists()  # it may be half written
    rounds.pass_one()
    assert rounds.fetched("step_10").read_text() == "ten", rounds.said
    checkpoint.write_text("ten, but")
    rounds.pass_one()
    assert rounds.fetched("step_10").read_text() == "ten"
    rounds.pass_one()
    assert rounds.fetched("step_10").read_text() == "ten, but"
    document = home.document(rounds.ctx.run.id)
    assert document["collected_at"]
    assert document["collected_step"] == 10


def test_what_would_fill_this_disk_stays_on_the_box(home: Home, monkeypatch) -> None:
    monkeypatch.setenv("GPURUN_HOME", str(home.places.root))
    rounds = Rounds(home)
    with (rounds.box / "out" / "huge").open("wb") as file:
        file.truncate(10**12)  # sparse
    rounds.pass_one()
    rounds.pass_one()
    assert not rounds.fetched("huge").exists()
    assert "stay on the box until its end" in rounds.said[-1]
