"""A home that rents at an emulated cloud, and what its runs came to: by the cloud's own meter.

with scene("vast", tmp_path) as stage:
    stage.cloud.fault("offer_gone", times=1)
    run = stage.up()
    stage.finished(run)
    assert stage.outcome(run).leaked_usd == 0
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpurun.clock import Deadline
from tests.boxes import Box
from tests.clouds.boxes import Boxes
from tests.clouds.serve import Cloud, cloud
from tests.clouds.world import Line
from tests.hosts import Hosts

# Files of the box: by the first a training of HOLDS says that it runs, at the second it ends.
RUNS, GO = "tmp/runs", "tmp/go"
AT_ONCE = "mkdir -p out; echo 42 > out/result.txt"
HOLDS = f"{AT_ONCE}; touch /{RUNS}; echo it trains; until [ -e /{GO} ]; do sleep 0.1; done"
FOUR_H100 = ("--set", "need.gpu=H100", "--set", "need.gpu_count=4")
OVER = ("done", "failed", "killed", "deadline")
CENT = Decimal("0.01")
TAIL_S = 360  # how long after DELETE a provider may bill: it counts as spent from the start
LONG_AFTER_S = 9 * 3600
LOOK_EVERY_S = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    boxes       made for it, by the cloud's books
    leaked_usd  billed in the nine hours after it was said to be over and the tail had passed
    """

    state: str
    exit_code: int
    boxes: int
    leaked_usd: Decimal
    billed_usd: Decimal
    seconds: float
    said: str


class Scene:
    """One account at one cloud, and one home that rents there."""

    def __init__(self, provider: str, cloud: Cloud, home: Hosts) -> None:
        self.provider = provider
        self.cloud = cloud
        self.home = home
        self.last: dict[str, Any] = {}  # the run's document when it was last looked at
        home.open_account(cloud)

    def up(self, *arguments: str, train: str = HOLDS, **recipe: Any) -> str:
        """Begin a run; its id."""
        path = self.home.recipe(train=train, **recipe)
        one_guard = ("--accept-one-guard",) if self.provider == "prime" else ()
        return self.home.up(path, "--provider", self.provider, *FOUR_H100, *one_guard, *arguments)

    def go(self, *arguments: str, **recipe: Any) -> dict[str, Any]:
        """A run whose training ends at once; its last document."""
        return self.finished(self.up(*arguments, train=AT_ONCE, **recipe))

    def in_training(self, *arguments: str, **recipe: Any) -> str:
        """A run whose training lasts until `release`; its id, once the training runs."""
        run = self.up(*arguments, **recipe)
        self.until_training(run)
        return run

    def until_training(self, run: str) -> None:
        """Until the driver has read what it says, and so has the answer to its launch."""
        self.until_phase(run, "train")
        self.until(lambda: (self.box.root / RUNS).exists())
        log = self.home.places.run_dir(run) / "train.log"
        self.until(lambda: log.exists() and log.stat().st_size)

    def release(self) -> None:
        """Let the training end."""
        (self.box.root / GO).touch()

    @property
    def box(self) -> Box:
        """The one machine that runs now."""
        [machine] = [each.box for each in self.cloud.world.living() if each.box is not None]
        found: Box = machine.box
        return found

    def until(self, holds: Callable[[], object], within_s: float = 120) -> None:
        self.home.until(lambda: bool(holds()), within_s)

    def until_phase(self, run: str, phase: str, within_s: float = 120) -> None:
        self.home.until_phase(run, phase, within_s)

    def until_asked(self, times: int) -> None:
        """The cloud has had so many requests more."""
        before = self.cloud.world.asked.total()
        self.until(lambda: self.cloud.world.asked.total() >= before + times)

    def until_made(self, count: int) -> None:
        """The cloud has made so many boxes."""
        self.until(lambda: len(self.made()) >= count, 150)

    def look(self, run: str) -> dict[str, Any]:
        """The run's document; the money in it is never below the meter."""
        billed_usd = self.billed_usd()
        self.last = document = self.home.document(run)
        shown_usd = Decimal(document["spent_usd"])
        assert shown_usd >= billed_usd, f"${shown_usd} is shown, the meter is at ${billed_usd}"
        return document

    def finished(self, run: str, within_s: float = 240) -> dict[str, Any]:
        """The run's last document; its money was looked at all the while."""
        deadline = Deadline(within_s, poll_s=LOOK_EVERY_S)
        while (document := self.look(run))["state"] not in OVER:
            assert not deadline.passed(), f"not over: {document}\n{self.home.logs()}"
        return document

    def refused(self, *arguments: str, **recipe: Any) -> None:
        """`up` that ends before anything is bought."""
        path = self.home.recipe(**recipe)
        words = ("--provider", self.provider, *FOUR_H100, "--accept-one-guard", *arguments)
        done = self.home.run("up", path, "--yes", *words)
        self.last = {
            "state": "refused",
            "exit_code": done.returncode,
            "elapsed_s": 0,
            "spent_usd": "0.00",
            "error": done.stderr.strip().rpartition("gpurun: ")[2],
        }

    def made(self) -> list[Line]:
        """Every box that was bought, gone or not, by the cloud's books."""
        return self._lines(foreign=False)

    def alive(self) -> int:
        """How many of them bill, or may."""
        return sum(line.alive for line in self.made())

    def foreign(self) -> list[Line]:
        """The boxes of somebody else in the same account."""
        return self._lines(foreign=True)

    def _lines(self, *, foreign: bool) -> list[Line]:
        lines = self.cloud.meter().instances
        rentals = self.cloud.world.rentals[: len(lines)]
        return [line for line, one in zip(lines, rentals, strict=True) if one.foreign == foreign]

    def billed_usd(self) -> Decimal:
        return sum((line.billed_usd for line in self.made()), Decimal(0))

    def jobs(self) -> list[Any]:
        """The DELETEs that the provider itself would still send."""
        return list(getattr(self.cloud.world, "jobs", {}).values())

    def outcome(self) -> Outcome:
        """Of the run that was looked at last; it is over, and so is everything of this home."""
        made, document = self.made(), self.last
        labels = [line.label for line in made]
        assert len(labels) == len(set(labels)), f"a label was bought twice: {labels}"
        assert self.cloud.world.asked["create"] == self.home.rentals(), "not once for each label"
        assert [line for line in made if line.alive] == [], "something of this home's lives on"
        assert all(line.alive for line in self.foreign()), "somebody else's box was ended"
        assert self.jobs() == [], "a scheduled end outlived its box"
        self.home.close()
        self.cloud.advance(TAIL_S)
        before_usd = self.billed_usd()
        assert Decimal(document["spent_usd"]) >= before_usd, "the tail was not shown as spent"
        self.cloud.advance(LONG_AFTER_S)
        leaked_usd = self.billed_usd() - before_usd
        return Outcome(
            document["state"],
            int(document["exit_code"] or 0),
            len(made),
            leaked_usd.quantize(CENT),
            before_usd.quantize(CENT),
            round(float(document["elapsed_s"]), 1),
            " ".join(str(document["error"] or document["reason"] or "").split()),
        )


@contextmanager
def scene(provider: str, root: Path, boxes: Boxes | None = None) -> Iterator[Scene]:
    """At a cloud whose machines are real ones; all that was started is ended."""
    with cloud(provider, boxes=boxes) as running:
        home = Hosts(root)
        try:
            yield Scene(provider, running, home)
        finally:
            home.close()
