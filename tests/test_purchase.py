"""The last moments before a purchase: the price has moved, the keeper does not answer (R2, R4)."""

import os
import pty
import select
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.cloudruns.scene import FOUR_H100, Scene, scene
from tests.clouds.stub import StubBoxes
from tests.homes import GPURUN, Home

ASKED = b"[y/N]"
SILENT_S = 100  # `up` says more, asks or ends before that
NO_WORD = """
CREATE TRIGGER no_word BEFORE UPDATE OF acked_at ON timers
BEGIN SELECT RAISE(ABORT, 'the keeper takes no word down'); END
"""
STATES = "SELECT runs.id, runs.state, instances.state FROM runs JOIN instances ON run_id = runs.id"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Scene]:
    with scene("vast", tmp_path / "home", StubBoxes()) as made:
        yield made


class Asked:
    """`gpurun up` at a terminal, with its plan shown and its question open."""

    def __init__(self, home: Home, *words: str | Path) -> None:
        self._terminal, other = pty.openpty()
        self._process = subprocess.Popen(
            [GPURUN, "up", *words],
            cwd=home.work,
            env=home.env | {"NO_COLOR": "1", "TERM": "dumb"},
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self.said = b""
        self._read(until=ASKED)

    def answer(self, text: str) -> None:
        os.write(self._terminal, text.encode() + b"\n")

    def code(self) -> int:
        """How it exits, once it has said all."""
        self._read()
        return self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _read(self, until: bytes = b"") -> None:
        """Until these words, else until it ends: then its terminal is closed, which is an error."""
        with suppress(OSError):
            while not until or until not in self.said:
                assert select.select([self._terminal], [], [], SILENT_S)[0], self.said
                more = os.read(self._terminal, 4096)
                self.said += more
                if not more:
                    return


@pytest.fixture
def asked(vast: Scene) -> Iterator[Asked]:
    """Every cap leaves room for more than the plan says."""
    caps = ("--set", "budget.max_usd=99", "--set", "budget.max_usd_per_hour=50")
    up = Asked(vast.home, vast.home.recipe(), "--provider", "vast", *FOUR_H100, *caps)
    yield up
    up.close()


def test_an_offer_that_is_dearer_than_its_plan_when_yes_is_said_is_not_bought(
    vast: Scene, asked: Asked
) -> None:
    vast.cloud.fault("offers_up", factor=1.05)
    asked.answer("y")
    assert asked.code() == 3
    assert b"the plan said" in asked.said and b"nothing was rented" in asked.said
    assert (vast.cloud.world.asked["create"], vast.made()) == (0, [])


@pytest.mark.parametrize("factor", [1.01, 0.9])
def test_one_that_is_as_dear_or_cheaper_is_bought(vast: Scene, asked: Asked, factor: float) -> None:
    vast.cloud.fault("offers_up", factor=factor)
    asked.answer("y")
    vast.until_made(1)


def test_a_timer_that_the_keeper_does_not_acknowledge_rents_nothing(vast: Scene) -> None:
    """It beats and lists all the while: it may hold every other timer, but not this one."""
    vast.home.places.ensure()
    journal = vast.home.journal()
    journal.database.migrate()
    with closing(sqlite3.connect(vast.home.places.database)) as raw:
        raw.execute(NO_WORD)
    done = vast.home.run("up", vast.home.recipe(), "--provider", "vast", *FOUR_H100, "--yes")
    assert done.returncode == 4, done.stderr + vast.home.logs()
    assert "did not acknowledge the timer" in done.stderr
    assert "nothing was rented" in done.stderr
    assert (vast.cloud.world.asked["create"], vast.made()) == (0, [])
    assert journal.attempts.live() == []
    with closing(sqlite3.connect(vast.home.places.database)) as raw:
        [(run, state, label_state)] = raw.execute(STATES).fetchall()
    assert (state, label_state) == ("failed", "refused")
    assert journal.ledger.committed_usd(run) == 0
    journal.close()
