"""What many runs have cost together: every grouping sums to what the runs themselves have cost."""

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun import glance, show
from gpurun.cli.app import run as command
from gpurun.cli.moment import ago
from gpurun.engine import kept
from gpurun.errors import UsageError
from gpurun.glance import money
from gpurun.glance.reader import Reader
from gpurun.glance.rows import gather
from gpurun.glance.since import PHASES
from gpurun.model import Ending, RunState
from gpurun.phases import ORDER
from gpurun.places import Places
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LOOK = show.Look()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    journal = journal_at(tmp_path, clock)
    yield Story(journal, clock)
    journal.close()


def lived(story: Story, clock: FakeClock, **seconds: float) -> None:
    for name, lasts_s in seconds.items():
        clock.advance(lasts_s)
        story.journal.ledger.book(story.label, name)


def another(story: Story, run_id: str, provider: str = "local", rate: str = "3.60") -> Story:
    return Story(story.journal, story.clock, run_id, Decimal(rate), provider)


def since(home: Path, clock: FakeClock, days: float = 30) -> dict[str, Any]:
    return glance.since_document(home, clock.now() - timedelta(days=days), clock.now())


def sql(home: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(Places(home).database) as database:
        database.execute(statement, values)
    database.close()


def test_runs_are_summed_by_recipe_provider_and_gpu(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    first = another(story, "first001", "vast", "3.60").rented(minutes=60)
    lived(first, clock, boot=100, train=900)
    first.gone()
    second = another(story, "second01", "prime", "7.20").rented(minutes=60)
    lived(second, clock, train=500)
    second.gone()
    sql(tmp_path, "UPDATE runs SET recipe_name = 'urm' WHERE id = 'second01'")
    sql(tmp_path, "UPDATE instances SET gpu = 'H200' WHERE run_id = 'second01'")
    document = since(tmp_path, clock)
    shown = (document["runs"], document["hours"], document["usd"], document["wasted_usd"])
    assert shown == (2, 0.42, "2.00", "0.10")
    phases = [(each["name"], each["usd"], each["wasted_usd"]) for each in document["phases"]]
    assert phases == [("boot", "0.10", "0.10"), ("train", "1.90", "0.00")]
    for by, names in (
        ("recipe", ["smoke", "urm"]),
        ("provider", ["prime", "vast"]),
        ("gpu", ["4x H100", "4x H200"]),
    ):
        groups = document[f"by_{by}"]
        assert sorted(group["name"] for group in groups) == names
        assert [group["usd"] for group in groups] == ["1.00", "1.00"]
        assert {group["wasted_share"] for group in groups} == {0.1, 0.0}


def test_a_run_on_two_kinds_of_boxes_is_one_run_in_each_group(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, boot=100)
    story.journal.attempts.gone(story.label, "{}")
    story.journal.ledger.book(story.label, "boot")
    sql(tmp_path, "UPDATE instances SET gpu = 'A100'")
    sql(
        tmp_path,
        "INSERT INTO instances SELECT 'second', run_id, provider, account_id, offer_id, "
        "usd_per_hour, ceiling_at, 'seen', NULL, 'H100', 8, sent_at, 'i-2', id_from, NULL, NULL, "
        "NULL, NULL, '{}' FROM instances",
    )
    story.journal.runs.show_phase(story.run_id, "setup")
    document = since(tmp_path, clock)
    assert (document["runs"], document["by_recipe"][0]["runs"]) == (1, 1)
    by_gpu = {group["name"]: (group["runs"], group["usd"]) for group in document["by_gpu"]}
    assert by_gpu == {"4x A100": (1, "0.10"), "8x H100": (1, "0.10")}
    assert document["wasted_usd"] == "0.10"  # the box that was given up


def test_the_sum_of_many_bookings_is_exact(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented(minutes=60)
    for _ in range(3):
        lived(story, clock, train=100)  # three times 0.1 is more than 0.3 to a float
    story.gone()
    assert since(tmp_path, clock)["usd"] == "0.30"


def test_tenths_of_cents_are_rounded_once_for_all_groups(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    for provider in ("vast", "prime", "local"):
        each = another(story, f"{provider:0<8}", provider).rented(minutes=60)
        lived(each, clock, boot=4, train=4)
        each.gone()
    document = since(tmp_path, clock)
    assert (document["usd"], document["wasted_usd"]) == ("0.03", "0.01")
    for key in ("usd", "wasted_usd"):
        by_provider = [Decimal(group[key]) for group in document["by_provider"]]
        assert sum(by_provider) == Decimal(document[key])


def test_a_run_that_never_had_a_box_counts_and_costs_nothing(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.begun()
    document = since(tmp_path, clock)
    assert (document["runs"], document["usd"], document["wasted_share"]) == (1, "0.00", None)
    assert document["by_gpu"][0]["name"] is None
    assert "1 run that lived since" in show.since_text(document, LOOK)


def test_runs_that_were_over_before_are_left_out(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    story.gone()
    clock.advance(2 * 86400)
    another(story, "later001").rented().gone()
    assert since(tmp_path, clock, days=1)["runs"] == 1
    clock.advance(2 * 86400)
    document = since(tmp_path, clock, days=1)
    assert (document["runs"], document["by_recipe"]) == (0, [])
    assert "no run has lived since" in show.since_text(document, LOOK)


@pytest.mark.parametrize("over", [True, False])
def test_a_run_that_began_before_and_lived_on_counts_with_all_that_it_has_cost(
    tmp_path: Path, clock: FakeClock, story: Story, over: bool
) -> None:
    story.rented(minutes=9000)
    lived(story, clock, train=3 * 86400)
    if over:
        story.gone()
    clock.advance(3600)
    document = since(tmp_path, clock, days=1)
    assert (document["runs"], document["usd"]) == (1, "259.20" if over else "262.80")


def test_without_a_journal_nothing_was_spent(tmp_path: Path, clock: FakeClock) -> None:
    assert since(tmp_path / "none", clock)["usd"] == "0.00"


LIFE = st.tuples(
    st.sampled_from(["vast", "prime"]),
    st.decimals(0, 40, places=4),
    st.lists(st.tuples(st.sampled_from(["boot", "setup", "train"]), st.floats(0.01, 9000))),
    st.sampled_from([None, Ending.DONE, Ending.FAILED]),
    st.none() | st.decimals(0, 50, places=4),
)


WHOLE = st.dictionaries(st.sampled_from("abcdefgh"), st.decimals(0, 9, places=4), min_size=1)


@given(WHOLE, st.lists(st.decimals(0, 1, places=3), min_size=8, max_size=8))
def test_no_part_is_more_than_its_whole_when_both_are_rounded(
    whole: dict[str, Decimal], shares: list[Decimal]
) -> None:
    part = {name: usd * share for (name, usd), share in zip(whole.items(), shares, strict=False)}
    usd = money.cents(sum(whole.values(), Decimal(0)))
    total = min(usd, money.nearest(sum(part.values(), Decimal(0))))
    in_cents = money.in_cents(whole, usd)
    found = money.part_in_cents(part, in_cents, total)
    assert sum(found.values()) == total
    assert all(0 <= found[name] <= in_cents[name] for name in whole)


@settings(max_examples=20, deadline=None)
@given(st.lists(LIFE, max_size=5))
def test_every_grouping_sums_to_the_cent(
    tmp_path_factory: pytest.TempPathFactory, lives: list[Any]
) -> None:
    home, clock = tmp_path_factory.mktemp("home"), FakeClock()
    journal = journal_at(home, clock)
    for number, (provider, rate, phases, ending, charged) in enumerate(lives):
        story = Story(journal, clock, f"run{number:05}", rate, provider).rented(minutes=9000)
        story.journal.ledger.hold(story.label, 300, Decimal("0.123"))
        for name, lasts_s in phases:
            lived(story, clock, **{name: lasts_s})
        clock.advance(1.7)
        if ending is not None:
            story.gone(ending, RunState.DONE)
            if charged is not None:
                journal.ledger.settle(story.label, charged)
    journal.close()
    document = since(home, clock)
    assert Decimal(document["usd"]) == money.cents(spent_by_the_runs(home, clock))
    for groups in (document[f"by_{by}"] for by in ("recipe", "provider", "gpu")):
        for key in ("usd", "wasted_usd"):
            assert sum(Decimal(group[key]) for group in groups) == Decimal(document[key])
    groups = [document, *document["by_recipe"], *document["by_provider"], *document["by_gpu"]]
    for group in groups:
        for key in ("usd", "wasted_usd"):
            assert sum(Decimal(each[key]) for each in group["phases"]) == Decimal(group[key])
        for phase in group["phases"]:
            kinds = [Decimal(phase[f"{kind}_usd"]) for kind in money.KINDS]
            assert sum(kinds) == Decimal(phase["usd"])
            assert Decimal(phase["wasted_usd"]) <= max(0, Decimal(phase["usd"]))
        assert group["wasted_share"] is None or 0 <= group["wasted_share"] <= 1


def spent_by_the_runs(home: Path, clock: FakeClock) -> Decimal:
    """Exact, by every row of each run."""
    with Reader(Places(home).database) as reader:
        runs = gather(reader, reader.rows("runs"))
    return sum((money.spent_usd(parts, clock.now()) for parts in runs), Decimal(0))


def test_damaged_rows_break_no_sums(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented()
    lived(story, clock, train=100)
    story.gone()
    rows = (
        ("run00001", "", 0, "accrue", "boot", "lots"),
        ("run00001", "x", "soon", "accrue", "boot", "NaN"),
        ("run00001", "x", 1e300, "settle", b"\xff", "1e999999"),
        ("run00001", "y", 1.0, "accrue", "warp", b"\x00"),
        ("nobody", "", 0, "accrue", "", "7"),
    )
    for row in rows:
        columns = "run_id, label, at, kind, phase, usd"
        sql(tmp_path, f"INSERT INTO ledger ({columns}) VALUES (?, ?, ?, ?, ?, ?)", *row)
    sql(tmp_path, "UPDATE runs SET progress_json = '[', recipe_json = '7', ending = 'failed'")
    sql(tmp_path, "UPDATE instances SET gpu_count = 'many', gone_at = 'then'")
    document = since(tmp_path, clock)
    assert document["usd"] == "0.10"
    assert json.dumps(document, allow_nan=False)
    assert show.since_text(document, LOOK) and show.since_csv(document)


def test_the_text_and_the_csv_say_the_same(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented(minutes=60)
    lived(story, clock, boot=100, train=900)
    story.gone()
    document = since(tmp_path, clock)
    text = show.since_text(document, LOOK).splitlines()
    assert text[0].endswith("0.3 h, $1.00, $0.10 of it wasted (10%)")
    assert text[2:4] == [
        "RECIPE  RUNS  HOURS   COST  WASTED  SHARE",
        "smoke      1    0.3  $1.00   $0.10    10%",
    ]
    rows = csv_rows(show.since_csv(document))
    assert [row["by"] for row in rows[::3]] == ["all", "recipe", "provider", "gpu"]
    assert [row["phase"] for row in rows] == ["boot", "train", "total"] * 4
    for boot, train, total in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert (total["runs"], total["hours"]) == ("1", "0.2800")
        assert [row["usd"] for row in (boot, train, total)] == ["0.10", "0.90", "1.00"]
        assert [row["wasted_usd"] for row in (boot, train, total)] == ["0.10", "0.00", "0.10"]
    assert (rows[5]["name"], rows[5]["recipe"]) == ("smoke", "smoke")
    assert (rows[11]["name"], rows[11]["gpu"]) == ("4x H100", "4x H100")


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_phase_that_is_booked_has_its_place(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    names = [*ORDER, kept.PHASE]
    lived(story, clock, **dict.fromkeys(names, 36.0))
    story.gone()
    assert set(names) <= set(PHASES)
    usd = {row["phase"]: row["usd"] for row in csv_rows(show.since_csv(since(tmp_path, clock)))}
    assert all(Decimal(usd[name]) > 0 for name in names), usd


def test_no_name_becomes_a_formula_of_a_spreadsheet(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented().gone()
    sql(tmp_path, "UPDATE runs SET recipe_name = '=cmd()'")
    assert "'=cmd()" in show.since_csv(since(tmp_path, clock))


@pytest.mark.parametrize("settled", [True, False])
def test_the_csv_of_a_run_tells_what_was_reserved_accrued_settled_and_wasted(
    tmp_path: Path, clock: FakeClock, story: Story, settled: bool
) -> None:
    """Below the same header as that of many."""
    story.rented(minutes=60)
    story.journal.ledger.hold(story.label, 100, Decimal("0.25"))
    lived(story, clock, boot=100, train=900)
    story.gone()
    if settled:
        story.journal.ledger.settle(story.label, Decimal("1.20"))
    text = show.report_csv(glance.report_document(tmp_path, "run00001", clock.now()))
    assert text.splitlines()[0] == show.since_csv(since(tmp_path, clock)).splitlines()[0]
    rows = csv_rows(text)
    assert {(row["by"], row["name"], row["recipe"], row["gpu"]) for row in rows} == {
        ("run", "run00001", "smoke", "4x H100")
    }
    kinds = ("reserved_usd", "accrued_usd", "settled_usd", "usd", "wasted_usd")
    found = {row["phase"]: tuple(row[kind] for kind in kinds) for row in rows}
    if settled:
        assert found["boot"] == ("0.00", "0.10", "0.00", "0.10", "0.10")
        assert found["train"] == ("0.00", "0.90", "0.00", "0.90", "0.00")
        assert found["settle"] == ("0.00", "0.00", "0.20", "0.20", "0.02")
        assert found["total"] == ("0.00", "1.00", "0.20", "1.20", "0.12")
    else:
        assert found["tail"] == ("0.10", "0.00", "0.00", "0.10", "0.10")
        assert found["traffic"] == ("0.25", "0.00", "0.00", "0.25", "0.00")
        assert found["total"] == ("0.35", "1.00", "0.00", "1.35", "0.20")


def test_the_total_of_a_run_that_goes_on_names_its_reservation(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, boot=100, train=900)
    rows = csv_rows(show.report_csv(glance.report_document(tmp_path, "run00001", clock.now())))
    assert [(row["phase"], row["reserved_usd"], row["usd"]) for row in rows] == [
        ("rent", "0.00", "0.00"),
        ("boot", "0.00", "0.10"),
        ("train", "0.00", "0.90"),
        ("total", "1.00", "1.00"),
    ]
    total = csv_rows(show.since_csv(since(tmp_path, clock)))[2]
    assert (total["phase"], total["reserved_usd"]) == ("total", "1.00")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("52w", NOW - timedelta(weeks=52)),
        ("2026-11-01T00:00:00Z", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01", datetime.fromisoformat("2026-11-01").astimezone(UTC)),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, moment: datetime) -> None:
    assert ago(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "30", "-3d", "soon", "9999999d", "999999w", "2026-13-01"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write 30d"):
        ago(text, NOW)


def test_the_future_is_refused() -> None:
    with pytest.raises(UsageError, match="in the future"):
        ago("2027-01-01", NOW)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "one RUN, or --since"),
        (["run00001", "--since", "30d"], "one RUN, or --since"),
        (["--since", "30d", "--json", "--csv"], "choose one"),
    ],
)
def test_a_report_is_of_one_run_or_of_a_time_in_one_form(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path))
    assert command(["report", *arguments]) == 2
    told = capsys.readouterr()
    assert says in told.out + told.err


def test_the_command_prints_text_json_or_csv(
    tmp_path: Path,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    story.rented().gone()
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path))
    forms = {"": "1 run that lived since", "--json": '"by_recipe"', "--csv": "by,name,recipe"}
    for form, says in forms.items():
        assert command(["report", "--since", "2026-01-01", *filter(None, [form])]) == 0
        assert says in capsys.readouterr().out
