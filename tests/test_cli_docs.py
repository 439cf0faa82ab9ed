"""The documents of the command line say what it does: fields, classes, commands."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pytest
import typer

import gpurun
from gpurun import engine, glance, holdings, show
from gpurun.cli.app import INTERRUPTED, app
from gpurun.cli.talk import error_document
from gpurun.clock import SystemClock
from gpurun.engine.plan import Elsewhere
from gpurun.errors import GpurunError
from gpurun.glance.keeping import CAP_KEYS
from gpurun.glance.lasttime import LastTime
from gpurun.holdings import Orphan, Whose
from gpurun.model import Instance, InstanceState, Offer
from gpurun.recipe import find, load
from gpurun.settings import Settings
from gpurun.show.offers import offer_document
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

DOCS = Path(__file__).parents[1] / "docs"
OPAQUE = ("runs[].receipt.evidence",)


def commands() -> Iterator[tuple[str, click.Command]]:
    root = typer.main.get_command(app)
    todo: list[tuple[str, click.Command]] = [("gpurun", root)]
    while todo:
        name, command = todo.pop()
        yield name, command
        if isinstance(command, click.Group):
            todo += [(f"{name} {sub}", found) for sub, found in command.commands.items()]


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: str(value))
def test_every_command_and_option_has_help(name: str, command: click.Command) -> None:
    assert command.help, f"{name} says nothing of itself"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} says nothing of itself"


def test_every_error_class_is_documented_with_its_code() -> None:
    text = (DOCS / "exit-codes.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.M))
    classes = {error.__name__: str(error.exit_code) for error in errors()}
    assert documented == classes | {"Interrupted": str(INTERRUPTED)}


def test_every_exit_code_is_documented_with_its_classes() -> None:
    text = (DOCS / "exit-codes.md").read_text().split("## By command")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|", text, re.M))
    assert sorted(map(int, rows)) == [0, 1, 2, 3, 4, 5, 6, 7, 10, 130]
    for error in errors():
        if error is not GpurunError:
            assert f"`{error.__name__}`" in rows[str(error.exit_code)]


def test_the_status_document_has_the_documented_fields(tmp_path: Path) -> None:
    live = _live(tmp_path / "live")
    over = glance.status(tmp_path / "live", _over(tmp_path / "live").now())
    cap = dict.fromkeys((*CAP_KEYS, "noted_at"))
    lists = {"orphans": [orphan()], "troubles": [{"provider": "", "why": ""}], "caps": [cap]}
    found = paths(live) | paths(over) | paths(lists)
    assert found == documented("status")


def test_the_bill_and_the_report_have_the_documented_fields(tmp_path: Path) -> None:
    _live(tmp_path)
    now = _over(tmp_path).now()
    run = paths(glance.run_document(tmp_path, "run00001", now))
    final = paths(glance.final_document(tmp_path, "run00001", now))
    report = paths(glance.report_document(tmp_path, "run00001", now))
    assert final - run == documented("up")
    assert report - final == documented("report")


def test_the_report_of_many_runs_has_the_documented_fields(tmp_path: Path) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented()
    clock.advance(100)
    story.gone()
    document = glance.since_document(tmp_path, clock.now() - timedelta(days=1), clock.now())
    assert paths(document) == documented("report --since")


def test_the_plan_has_the_documented_fields(tmp_path: Path) -> None:
    plan = engine.plan(
        load("smoke", provider="local"),
        find("smoke").parent,
        provider="local",
        offer_id=None,
        settings=Settings(),
        clock=SystemClock(),
    )
    passed_over = (Elsewhere("prime", "no answer"),)
    before = LastTime("run00001", None, "H100", 4, 1.0, Decimal(1), 3.1, 5, 5, True, {})
    document = show.plan_document(replace(plan, elsewhere=passed_over, last_time=before))
    assert {path for path in paths(document) if not path.startswith("offer.")} == documented(
        "up --dry-run"
    )


def test_offers_have_the_documented_fields() -> None:
    offer = Offer("vast", "77", "H100", 4, Decimal("7.56"), 200)
    silent = [{"provider": "prime", "why": "no answer"}]
    document = {"offers": [offer_document(offer, None)], "silent": silent}
    assert paths(document) == documented("offers")


def test_orphans_have_the_documented_fields() -> None:
    troubles = [{"provider": "prime", "why": "no answer"}]
    document = {"orphans": [orphan()], "troubles": troubles, "ended": True}
    assert paths(document) == documented("orphans")


def test_orphans_that_a_keeper_has_seen_have_the_same_fields() -> None:
    assert tuple(orphan()) == glance.ORPHAN_KEYS


def test_the_error_document_has_the_documented_fields() -> None:
    found = paths(error_document("UsageError", "what", 2)) - {"error"}
    assert found == documented("An error")


def test_the_keeper_document_has_the_documented_fields(tmp_path: Path) -> None:
    clock = FakeClock()
    Story(journal_at(tmp_path, clock), clock).rented().watched()
    document = glance.keeper_document(tmp_path, clock.now())
    assert paths(document) == documented("keeper status")


def test_each_example_is_json_with_documented_fields() -> None:
    text = (DOCS / "json.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", text, re.S)
    error, status = (json.loads(example) for example in examples)
    assert paths(error) - {"error"} == documented("An error")
    missing_in_example = {path for path in documented("status") if "receipt." in path}
    assert paths(status) == documented("status") - missing_in_example


def orphan() -> dict[str, Any]:
    row = Instance("vast", "5", "mine", InstanceState.STOPPED, Decimal("0.02"), None)
    return holdings.document(Orphan(row, "310077", "box", Whose.FOREIGN))


def paths(document: Any, at: str = "") -> set[str]:
    """Every field of a document as the tables write it."""
    if at in OPAQUE:
        return set()
    if isinstance(document, list):
        return set().union(*(paths(item, f"{at}[]") for item in document))
    if not isinstance(document, dict):
        return set()
    found = set()
    for name, value in document.items():
        here = f"{at}.{name}" if at else name
        found |= {here} | paths(value, here)
    return found


def documented(section: str) -> set[str]:
    """The fields of one section's table."""
    text = (DOCS / "json.md").read_text()
    matched = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert matched, f"json.md has no section {section}"
    return set(re.findall(r"^\| `([^`]+)` \|", matched[1], re.M))


def errors() -> set[type[GpurunError]]:
    for module in pkgutil.walk_packages(gpurun.__path__, "gpurun."):
        if "__main__" not in module.name and "migrations" not in module.name:
            importlib.import_module(module.name)
    found, todo = set(), [GpurunError]
    while todo:
        error = todo.pop()
        found.add(error)
        todo += error.__subclasses__()
    return {error for error in found if error.__module__.startswith("gpurun.")}


def _live(home: Path) -> dict[str, Any]:
    """A run under way, with everything that a document can show of it."""
    clock = FakeClock()
    story = Story(journal_at(home, clock), clock).rented().watched()
    ends_at = clock.now() + timedelta(minutes=11)
    story.journal.timers.guard(story.label, "fuse", "armed", seq=1, ends_at=ends_at)
    story.journal.runs.progress(story.run_id, {"step": 5, "total_steps": 10, "eta_s": 9.0})
    story.journal.runs.collected(story.run_id, [{"path": "/a", "bytes": 1, "sha256": "ff"}])
    document = glance.status(home, clock.now())
    story.gone()
    story.journal.close()
    return document


def _over(home: Path) -> FakeClock:
    """The clock, once the run of `_live` is over."""
    clock = FakeClock()
    clock.advance(100)
    return clock
