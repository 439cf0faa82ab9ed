"""The memory of bad machines: why, until when, whatever becomes of its file."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun.avoid import FILE, FOR, Avoided
from tests.fakecloud import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def avoided(tmp_path: Path, clock: FakeClock) -> Avoided:
    return Avoided(tmp_path, clock)


def test_a_machine_is_avoided_with_its_reason_until_its_time_is_over(
    avoided: Avoided, clock: FakeClock
) -> None:
    avoided.remember("vast", "21004", "SSH never\nanswered")
    (bad,) = avoided.all()
    assert (bad.machine, bad.why) == ("21004", "SSH never answered")
    assert bad.until == clock.now() + FOR
    clock.advance(FOR.total_seconds() - 1)
    assert avoided.machines("vast") == {"21004"}
    clock.advance(2)
    assert avoided.machines("vast") == frozenset()


def test_another_process_and_another_provider_see_their_own(
    avoided: Avoided, tmp_path: Path, clock: FakeClock
) -> None:
    avoided.remember("vast", "1", "slow")
    avoided.remember("prime", "1", "slow")
    avoided.remember("vast", "", "no machine is told")
    other = Avoided(tmp_path, clock)
    other.forget("prime", "1")
    assert (avoided.machines("vast"), avoided.machines("prime")) == ({"1"}, frozenset())


def test_the_last_word_on_a_machine_counts(avoided: Avoided) -> None:
    avoided.remember("vast", "1", "slow", timedelta(days=30))
    avoided.remember("vast", "1", "wrong GPU", timedelta(hours=1))
    assert [bad.why for bad in avoided.all()] == ["wrong GPU"]


def test_a_torn_or_foreign_line_loses_no_other(avoided: Avoided, tmp_path: Path) -> None:
    avoided.remember("vast", "1", "slow")
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"provider": "vast", "mach\n\xff\xfe\n[1]\n{"until": "2026-01-01"}\n')
    avoided.remember("vast", "2", "slow")
    assert avoided.machines("vast") == {"1", "2"}


def test_a_file_that_cannot_be_written_or_read_stands_in_nobodys_way(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / FILE).mkdir()
    avoided = Avoided(tmp_path, clock)
    avoided.remember("vast", "1", "slow")
    assert avoided.all() == []


def test_many_writers_lose_nothing(avoided: Avoided) -> None:
    writers = [
        threading.Thread(target=avoided.remember, args=("vast", str(n), "slow")) for n in range(20)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert avoided.machines("vast") == {str(n) for n in range(20)}
