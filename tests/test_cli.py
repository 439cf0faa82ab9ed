"""The command line as a process: what it prints where, its exit codes, what it imports."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.cli import many_runs
from gpurun import __version__
from gpurun.blackbox import BlackBox, Entry
from gpurun.clock import Deadline, SystemClock
from gpurun.locks import hold, holder
from gpurun.places import Places
from tests.homes import end_processes_of
from tests.stories import Story, journal_at

HEAVY = "sqlmodel sqlalchemy pydantic pydantic_settings httpx fabric paramiko apscheduler alembic"
COMMANDS = (
    "offers", "up", "status", "kill", "logs", "pull", "extend", "resume", "report", "recipes",
    "doctor", "orphans", "keeper", "auth",
)  # fmt: skip
RECIPE = """
name: tiny
need:
  gpu: none
  disk_gb: 1
providers:
  - local
budget:
  max_usd_per_hour: 10.00
  max_usd: 5.00
  run_minutes: 5
setup:
  device: cpu
train:
  run: "true"
"""


class Cli:
    """`gpurun` in a state directory of its own, without a terminal."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("GPURUN_")
        } | {"GPURUN_HOME": str(home), "GPURUN_CONFIG": str(home / "config.toml")}

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpurun.cli", *arguments],
            env=self.environment,
            cwd=self.home.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def imported(self, *arguments: str) -> set[str]:
        """The top-level modules that a command has loaded when it is through."""
        check = (
            "import sys\nfrom gpurun.cli.app import run\n"
            f"run({list(arguments)})\nprint('LOADED', *sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", check],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return {name.split(".")[0] for name in done.stdout.split("LOADED ")[1].split()}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "home").mkdir(mode=0o700)
    cli = Cli(tmp_path / "home")
    yield cli
    end_processes_of(cli.home)  # also of a keeper that has only just been started


def test_it_says_its_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"gpurun {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    assert command in cli("--help").stdout
    assert "Usage: gpurun" in cli(command, "--help").stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["status"], ["status", "--json"], ["report", "run"]]
)
def test_what_is_run_all_day_imports_nothing_heavy(cli: Cli, arguments: Sequence[str]) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented().gone()
    assert cli.imported(*arguments) & set(HEAVY.split()) == set()


def test_errors_go_to_stderr_and_results_to_stdout(cli: Cli) -> None:
    unknown = cli("status", "nope", code=2)
    assert (unknown.stdout, unknown.stderr) == (
        "",
        "gpurun: no run 'nope'; `gpurun status --all` lists them\n",
    )
    assert cli("status").stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [["kill", "nope"], ["kill"], ["kill", "x", "--all"], ["up"], ["up", "nope", "-y"], ["what"],
     ["logs", "nope"], ["report", "nope"], ["pull", "nope"], ["extend", "nope", "30m"],
     ["extend", "nope", "soon"], ["resume", "nope"], ["status", "--nope"], ["offers", "-n", "0"],
     ["offers", "--provider", "nope"], ["offers", "--max-price", "cheap"]],
)  # fmt: skip
def test_bad_use_exits_2_with_one_line_or_one_document(cli: Cli, arguments: Sequence[str]) -> None:
    plain = cli(*arguments, code=2)
    assert plain.stdout == ""
    assert plain.stderr.splitlines()[-1].startswith("gpurun: ")
    as_json = cli(*arguments, "--json", code=2)
    error = json.loads(as_json.stdout)["error"]
    assert (error["class"], error["exit_code"]) == ("UsageError", 2)
    assert error["message"]


def test_up_without_yes_and_without_a_terminal_rents_nothing(cli: Cli) -> None:
    recipe = cli.home / "tiny.yaml"
    recipe.write_text(RECIPE)
    refused = cli("up", str(recipe), code=2)
    assert "--yes" in refused.stderr and "nothing was done" in refused.stderr
    assert not Places(cli.home).database.exists()


def test_a_dry_run_prints_plan_and_steps_and_writes_nothing(cli: Cli) -> None:
    recipe = cli.home / "tiny.yaml"
    recipe.write_text(RECIPE)
    cli.environment["GPURUN_LOCAL_USD_PER_HOUR"] = "0.60"
    text = cli("up", str(recipe), "--dry-run").stdout
    assert "at most   $0.52 of budget.max_usd $5.00" in text
    assert "\ntrain\n  - launch, detached: true" in text
    plan = json.loads(cli("up", str(recipe), "--dry-run", "--json").stdout)
    assert (plan["ceiling_usd"], plan["offer"]["usd_per_hour"]) == ("0.52", "0.60")
    assert [part["phase"] for part in plan["steps"]][-1] == "destroy"
    assert not Places(cli.home).database.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--max-usd", "0.01"], 3, "max_usd"),
        (["--set", "budget.max_usd_per_hour=0.10"], 3, "max_usd_per_hour"),
        (["--set", "need.gpu=H100", "--set", "setup.device=cuda"], 3, "H100"),
        (["--offer", "other-machine"], 3, "other-machine"),
        (["--set", "need.gpus=1"], 2, "did you mean need.gpu"),
        (["--set", "secrets=[NOT_SET_HERE]"], 2, "NOT_SET_HERE"),
        (["--provider", "vats"], 2, "vats"),
        (["--max-usd", "lots"], 2, "max_usd"),
    ],
)
def test_what_cannot_be_rented_is_refused_before_anything_is_written(
    cli: Cli, arguments: Sequence[str], code: int, says: str
) -> None:
    recipe = cli.home / "tiny.yaml"
    recipe.write_text(RECIPE)
    cli.environment["GPURUN_LOCAL_USD_PER_HOUR"] = "0.60"
    assert says in cli("up", str(recipe), "--yes", *arguments, code=code).stderr
    assert not Places(cli.home).database.exists()


def test_status_of_a_finished_run(cli: Cli) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented().gone()
    assert "run00001" in cli("status").stdout
    run = json.loads(cli("status", "run0", "--json").stdout)["runs"][0]
    assert (run["id"], run["state"], run["exit_code"]) == ("run00001", "done", 0)
    assert "destroyed, $0.01" in cli("report", "run0").stdout
    assert json.loads(cli("report", "run0", "--json").stdout)["timers"][0]["kind"] == "setup"


def test_kill_of_a_finished_run_says_so_and_succeeds(cli: Cli) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented().gone()
    assert "already done" in cli("kill", "run00001").stdout
    killed = json.loads(cli("kill", "run00001", "--json").stdout)["runs"]
    assert [(run["id"], run["state"]) for run in killed] == [("run00001", "done")]
    assert "no run is live" in cli("kill", "--all").stdout


def test_logs_are_printed_from_the_start(cli: Cli) -> None:
    clock = SystemClock()
    story = Story(journal_at(cli.home, clock), clock).rented().gone()
    folder = Places(cli.home).run_dir(story.run_id)
    folder.mkdir(parents=True)
    (folder / "steps.log").write_text("phase boot\n")
    (folder / "train.log").write_text("step 1\nstep 2")
    assert cli("logs", "run0").stdout == "phase boot\nstep 1\nstep 2"
    assert cli("logs", "run0", "-f").stdout == "phase boot\nstep 1\nstep 2"
    documents = [json.loads(line) for line in cli("logs", "run0", "--json").stdout.splitlines()]
    assert documents[-1] == {"log": "train", "line": "step 2"}


def test_pull_of_a_finished_run_says_where_its_artifacts_lie(cli: Cli) -> None:
    clock = SystemClock()
    story = Story(journal_at(cli.home, clock), clock).rented()
    story.journal.runs.collected("run00001", [{"path": "/runs/a", "bytes": 3, "sha256": "ff"}])
    story.gone()
    assert cli("pull", "run0").stdout == "/runs/a\n"
    assert json.loads(cli("pull", "run0", "--json").stdout)["files"] == ["/runs/a"]


def test_extending_and_killing_need_consent(cli: Cli) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented()
    with _no_keeper(cli):
        for arguments in (["kill", "run0"], ["kill", "--all"], ["extend", "run0", "30m"]):
            assert "--yes" in cli(*arguments, code=2).stderr


def test_offers_are_listed_side_by_side(cli: Cli) -> None:
    cli.environment["GPURUN_LOCAL_USD_PER_HOUR"] = "0.60"
    assert "0.60" in cli("offers").stdout
    offer = json.loads(cli("offers", "--json").stdout)["offers"][0]
    assert (offer["provider"], offer["usd_per_hour"], offer["run_usd"]) == ("local", "0.60", None)
    priced = json.loads(cli("offers", "--recipe", "smoke", "--json").stdout)["offers"][0]
    assert re.fullmatch(r"0\.\d\d", priced["run_usd"])
    assert "fits" in cli("offers", "--max-price", "0.59", code=3).stderr
    assert json.loads(cli("offers", "--gpu", "H100", "--json", code=3).stdout)["error"]


def test_recipes_are_listed_shown_and_described(cli: Cli) -> None:
    assert "smoke" in cli("recipes").stdout
    assert {r["name"] for r in json.loads(cli("recipes", "--json").stdout)["recipes"]} >= {"smoke"}
    shown = cli("recipes", "show", "smoke", "--provider", "local").stdout
    assert "gpu: none" in shown and "gpu: H100" not in shown
    assert json.loads(cli("recipes", "schema").stdout)["title"] == "gpurun recipe"
    cli("recipes", "show", "smokee", code=2)


def test_doctor_and_orphans_ask_anew(cli: Cli) -> None:
    findings = json.loads(cli("doctor", "--json").stdout)
    assert findings["ok"] and {"disk", "journal", "keeper", "local"} <= {
        finding["what"] for finding in findings["findings"]
    }
    assert "no orphans" in cli("orphans").stdout
    assert json.loads(cli("orphans", "--json").stdout) == {"orphans": [], "troubles": []}
    cli("orphans", "--kill", "nope", "-y", code=2)
    assert json.loads(cli("status", "--refresh", "--json").stdout)["orphans_checked_at"]


def test_a_host_that_does_not_answer_hides_none_of_our_runs(cli: Cli) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented()
    cli.environment["GPURUN_SSH_HOSTS"] = '[{"host": "127.0.0.1", "port": 1}]'
    with _no_keeper(cli):
        done = cli("status", "--refresh", code=4)
        assert "run0" in done.stdout
        assert "ssh:root@127.0.0.1:1 cannot be reached" in done.stderr
        document = json.loads(cli("status", "--refresh", "--json", code=4).stdout)
        assert [run["id"] for run in document["runs"]] == ["run00001"]
        assert document["orphans_checked_at"]
        [trouble] = document["troubles"]
        assert trouble["provider"] == "ssh:root@127.0.0.1:1"
        assert "cannot be reached" in trouble["why"]


def test_the_keeper_is_started_seen_and_stopped(cli: Cli) -> None:
    assert "no keeper" in cli("keeper", "status").stdout
    pid = json.loads(cli("keeper", "start", "--json").stdout)["pid"]
    until = Deadline(20)
    shown = json.loads(cli("keeper", "status", "--json").stdout)
    while not (shown["beat_at"] or until.passed()):
        shown = json.loads(cli("keeper", "status", "--json").stdout)
    assert (shown["pid"], shown["beat_age_s"] < 15) == (pid, True)
    assert re.search(rf"pid {pid}, .*last beat \d+:\d\d ago", cli("keeper", "status").stdout)
    assert "has stopped" in cli("keeper", "stop").stdout
    assert json.loads(cli("keeper", "stop", "--json").stdout) == {"stopped": False}
    assert "adopt" in cli("keeper", "--help").stdout


def test_any_command_brings_the_keeper_back_while_a_timer_is_armed(cli: Cli) -> None:
    _arm_black_box(cli.home)
    cli("status", "--help")
    cli("--version")
    assert _keeper_pid(cli) is None
    cli("status")
    until = Deadline(20)
    while not (until.passed() or _keeper_pid(cli)):
        pass
    assert _keeper_pid(cli) is not None


def test_without_an_armed_timer_no_keeper_is_started(cli: Cli) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented().gone()
    cli("status")
    assert _keeper_pid(cli) is None


def test_status_of_a_corrupt_journal_says_where_it_has_it_from(cli: Cli) -> None:
    _arm_black_box(cli.home)
    Places(cli.home).database.write_bytes(b"no database" * 1000)
    with _no_keeper(cli):
        told = cli("status")
        assert "lostrun1" in told.stdout
        assert "timers.log" in told.stderr and "cannot be read" in told.stderr
        assert json.loads(cli("status", "--json").stdout)["runs"][0]["id"] == "lostrun1"
        cli("report", "lostrun1", code=2)


def test_a_bug_leaves_its_traceback_in_a_file_and_one_line(cli: Cli) -> None:
    broken = (
        "import sys\nfrom gpurun.cli import app as cli\n"
        "@cli.app.command()\ndef broken(as_json: bool = False) -> None:\n    1 / 0\n"
        "sys.argv = ['gpurun', 'broken']\nsys.exit(cli.run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", broken], env=cli.environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    (kept,) = (cli.home / "crashes").iterdir()
    assert str(kept) in done.stderr
    assert "ZeroDivisionError" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_reader_that_has_gone_is_no_error(cli: Cli, tmp_path: Path) -> None:
    many_runs(cli.home, 1000)
    piped = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gpurun.cli status --all | head -n 1"],
        env=cli.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert piped.stdout.startswith("RUN") and piped.stderr == ""


def test_a_thousand_runs_are_one_plain_line_each(cli: Cli) -> None:
    many_runs(cli.home, 1000)
    lines = cli("status", "--all").stdout.splitlines()
    assert len(lines) == 1001 and all(re.match(r"r\d{7}  smoke", line) for line in lines[1:])
    assert len(cli("status").stdout.splitlines()) == 11


def test_ctrl_c_exits_130(cli: Cli) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "gpurun.cli", "status", "--watch"],
        env=cli.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    assert "no runs" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130


def test_windows_is_told_of_wsl(cli: Cli) -> None:
    on_windows = "import sys; sys.platform = 'win32'; from gpurun.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", on_windows], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "WSL" in done.stderr


def test_completion_help_and_version_start_no_keeper_while_a_timer_is_armed(cli: Cli) -> None:
    _arm_black_box(cli.home)
    cli("status", "--help")
    cli("--version")
    subprocess.run(
        [Path(sys.executable).with_name("gpurun")],
        env=cli.environment
        | {"_GPURUN_COMPLETE": "complete_bash", "COMP_WORDS": "gpurun st", "COMP_CWORD": "1"},
        check=True, capture_output=True,
    )  # fmt: skip
    assert not Places(cli.home).keeper_log.exists(), "it is made before the keeper's process"
    cli("status")
    assert Places(cli.home).keeper_log.exists()


def test_a_report_is_printed_as_a_table_of_commas(cli: Cli) -> None:
    clock = SystemClock()
    story = Story(journal_at(cli.home, clock), clock).rented()
    story.journal.ledger.book(story.label, "rent")
    story.gone()
    lines = list(csv.DictReader(io.StringIO(cli("report", "run00001", "--csv").stdout)))
    document = json.loads(cli("report", "run00001", "--json").stdout)
    told = {each["name"]: each["usd"] for each in document["phases"]}
    assert told and {line["phase"]: line["usd"] for line in lines if line["phase"] in told} == told


def test_completion_completes_and_installs(cli: Cli, tmp_path: Path) -> None:
    clock = SystemClock()
    Story(journal_at(cli.home, clock), clock).rented().gone()
    gpurun = Path(sys.executable).with_name("gpurun")
    for words, expected in (("gpurun st", "status"), ("gpurun report r", "run00001")):
        completed = subprocess.run(
            [gpurun],
            env=cli.environment
            | {"_GPURUN_COMPLETE": "complete_bash", "COMP_WORDS": words,
               "COMP_CWORD": str(words.count(" "))},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert expected in completed.stdout.split()
    subprocess.run(
        ["bash", "-c", f"{gpurun} --install-completion; exit $?"],
        env=cli.environment | {"HOME": str(tmp_path)}, check=True, capture_output=True,
    )  # fmt: skip
    assert "gpurun" in (tmp_path / ".bashrc").read_text()


@contextmanager
def _no_keeper(cli: Cli) -> Iterator[None]:
    """Somebody holds the keeper's lock, so that no command starts one."""
    with hold(Places(cli.home).keeper_lock):
        yield


def _keeper_pid(cli: Cli) -> int | None:
    return holder(Places(cli.home).keeper_lock)


def _arm_black_box(home: Path) -> None:
    """A timer that only the black box knows, of a box that is not there."""
    clock = SystemClock()
    entry = Entry(
        seq=1,
        label="gpurun-owner1-lostrun1-nonce1",
        provider="local",
        account="elsewhere",
        instance_id="i-1",
        usd_per_hour=Decimal("1.89"),
        fires_at=clock.now() + timedelta(hours=1),
        ends_at=clock.now() + timedelta(hours=1),
        ceiling_at=clock.now() + timedelta(hours=1),
        state="seen",
    )
    BlackBox(Places(home).blackbox, "owner1", "machine").append(entry)
