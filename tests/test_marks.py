"""50, 80 and 95 % of what a run may cost: the journal, `status` and the messages agree on when."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlmodel import col, select

from gpurun import glance, show
from gpurun.marks import MARKS, passed
from gpurun.store.tables import EventRow
from tests.inbox import Inbox
from tests.scene import Scene

BUDGET = Decimal(13)
PERCENT_S = 13 / 100 / 3.6 * 3600  # how long the box takes for a hundredth of it


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    inbox = Inbox()
    made = Scene(tmp_path, inbox)
    yield made
    made.journal.close()
    inbox.close()


def in_journal(scene: Scene) -> list[int]:
    query = select(EventRow.what).where(col(EventRow.what).in_([f"{each}%" for each in MARKS]))
    with scene.journal.database.read() as session:
        return sorted(int(what[:-1]) for what in session.exec(query))


def in_messages(scene: Scene) -> list[int]:
    titles = [title for title in scene.inbox.titles if "of its money" in title]
    return sorted(int(title.split()[4][:-1]) for title in titles)


def in_status(scene: Scene) -> int:
    shown = show.status_text(glance.status(scene.root, scene.clock.now()), show.Look())
    found = [line for line in shown.splitlines() if "of its money is spent" in line]
    return int(found[0].split()[1]) if found else 0


def test_journal_status_and_messages_pass_each_mark_at_the_same_dollar(scene: Scene) -> None:
    """With traffic held for it, which counts, and a tail, which does not before the box is gone."""
    scene.rented()
    scene.journal.ledger.hold(scene.story.label, tail_s=1200, traffic_usd=Decimal("1.30"))
    seen = set()
    for _ in range(88):
        scene.fuse()
        scene.journal.ledger.book(scene.story.label, "train")
        scene.look(after_s=PERCENT_S)
        scene.journal.ledger.book(scene.story.label, "train")
        run = glance.run_document(scene.root, scene.story.run_id, scene.clock.now())
        last = passed(Decimal(run["spent_usd"]), BUDGET)
        marks = [mark for mark in MARKS if mark <= last]
        assert in_journal(scene) == in_messages(scene) == marks, run["spent_usd"]
        assert in_status(scene) == last
        seen.add(last)
    assert seen == {0, *MARKS}


def test_a_mark_is_passed_by_the_cent_that_is_shown() -> None:
    assert passed(Decimal("6.49"), BUDGET) == 0
    assert passed(Decimal("6.4901"), BUDGET) == 50
    assert passed(Decimal("12.34"), BUDGET) == 80
    assert passed(Decimal("99"), BUDGET) == 95
    assert passed(Decimal("1"), Decimal(0)) == 0


def test_a_charge_that_is_lower_makes_no_lower_mark_news(scene: Scene) -> None:
    scene.rented()
    scene.clock.advance(81 * PERCENT_S)
    scene.fuse()
    scene.look()
    assert in_messages(scene) == [80]
    with scene.journal.database.write() as session:
        session.connection().exec_driver_sql(
            "INSERT INTO ledger (run_id, label, at, kind, phase, usd)"
            " VALUES (?, ?, ?, 'settle', 'settle', '-3.00')",
            (scene.story.run_id, scene.story.label, scene.clock.now().timestamp()),
        )
    scene.story.phase("train")
    scene.look()
    assert in_status(scene) == 50
    assert in_messages(scene) == [80]
