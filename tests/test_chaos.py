"""Fifty schedules of chaos, and proof that its judge is not blind; the rest by hand (chaos)."""

import subprocess
from collections.abc import Iterable

import pytest

from tests.chaos.mutations import PATCHES, SEEKERS, all_caught
from tests.chaos.playing import play_all
from tests.chaos.schedule import Schedule, drawn, from_json
from tests.chaos.withheld import Withheld, withheld_s
from tests.chaos.worlds import in_the_account, worlds

SEED = 2026
SIDE_BY_SIDE = 4  # what is late by the machine's load counts as late


@pytest.mark.box
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("chaos")  # one after the other: all at once they would be late
@pytest.mark.parametrize("first", [0, 8, 16])
def test_nothing_leaks_whatever_dies(first: int) -> None:
    _all_clean(drawn(SEED, number, "local") for number in range(first, first + 8))


@pytest.mark.box
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("chaos")
def test_nothing_leaks_whatever_else_is_there() -> None:
    _all_clean(worlds("local"))


@pytest.mark.box
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("provider", ["vast", "prime"])
def test_nothing_leaks_at_a_cloud(provider: str) -> None:
    drawn_ones = (drawn(SEED, number, provider) for number in range(6))
    _all_clean([*in_the_account(provider), *drawn_ones])


def _all_clean(schedules: Iterable[Schedule]) -> None:
    for result in play_all(schedules, side_by_side=SIDE_BY_SIDE):
        assert result.verdict.clean, f"{result.verdict.found} {result.schedule.to_json()}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_defect_is_seen_and_sound_code_is_not_accused(capsys: pytest.CaptureFixture[str]) -> None:
    assert all_caught("kill-by-prefix"), capsys.readouterr().out


@pytest.mark.parametrize("provider", ["local", "vast", "prime"])
def test_a_seed_draws_the_same_schedules_again(provider: str) -> None:
    drawn_once = [drawn(7, number, provider) for number in range(50)]
    assert drawn_once == [drawn(7, number, provider) for number in range(50)]
    assert [from_json(one.to_json()) for one in drawn_once] == drawn_once
    assert len({one.to_json() for one in drawn_once}) == 50


def test_what_a_hypervisor_withholds_is_counted_between_two_times() -> None:
    withheld = Withheld()
    for at_s, so_far_s in ((1, 0.5), (2, 0.5), (3, 1.25), (9, 4.0)):
        withheld.note(at_s, so_far_s)
    assert [withheld.between_s(*times) for times in ((1, 9), (2, 3), (2.5, 8))] == [3.5, 0.75, 0]
    assert [withheld.between_s(*times) for times in ((0, 0.5), (9.5, 99), (0, 99))] == [0, 0, 3.5]
    assert 0 <= withheld_s() <= withheld_s()


def test_every_mutation_has_a_schedule_that_looks_for_it() -> None:
    assert {path.stem for path in PATCHES.glob("*.patch")} == set(SEEKERS)


@pytest.mark.parametrize("name", SEEKERS)
def test_a_mutation_still_fits_the_code(name: str) -> None:
    patch = PATCHES / f"{name}.patch"
    done = subprocess.run(
        ["git", "apply", "--check", "--recount", "-C1", str(patch)],
        cwd=PATCHES.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
