"""Settings and places: read strictly, made by nobody but the user, closed to others."""

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import settings
from gpurun.errors import UsageError
from gpurun.places import Places, config_file, state_dir
from gpurun.recipe import Caps


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("GPURUN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPURUN_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


def refusal() -> str:
    with pytest.raises(UsageError) as caught:
        settings.load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_file_the_defaults_hold_and_no_file_is_made(config: Path) -> None:
    found = settings.load()
    assert found.caps == Caps(None, None)
    assert found.runs_dir == Path("runs").absolute()
    assert found.local_usd_per_hour == 0
    assert found.late_collect_minutes == 2
    assert not config.exists()


def test_money_in_the_file_keeps_its_digits(config: Path) -> None:
    config.write_text("max_usd_per_hour = 10.10\nmax_usd = 0.1\n")
    assert settings.load().caps == Caps(Decimal("10.10"), Decimal("0.1"))
    assert str(settings.load().max_usd_per_hour) == "10.10"


def test_the_environment_is_stronger_than_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("max_usd = 5\nlate_collect_minutes = 1\n")
    monkeypatch.setenv("GPURUN_MAX_USD", "7.50")
    monkeypatch.setenv("GPURUN_LOCAL_USD_PER_HOUR", "1.89")
    monkeypatch.setenv("GPURUN_TORCH_CPU_INDEX", "")
    found = settings.load()
    assert (found.max_usd, found.late_collect_minutes) == (Decimal("7.50"), 1)
    assert found.local_usd_per_hour == Decimal("1.89")
    assert found.torch_cpu_index == ""


def test_keys_are_never_in_what_is_printed(config: Path) -> None:
    config.write_text('[keys]\nvast = "hunter2"\n[secrets]\nWANDB_API_KEY = "hunter2"\n')
    config.chmod(0o600)
    found = settings.load()
    assert found.keys["vast"].get_secret_value() == "hunter2"
    assert "hunter2" not in f"{found} {found!r} {found.model_dump()}"


def test_a_file_with_keys_that_others_can_read_is_refused(config: Path) -> None:
    config.write_text('[keys]\nvast = "hunter2"\n')
    config.chmod(0o640)
    assert refusal() == (
        f"{config} holds keys and others can read it (mode 640): run `chmod 600 {config}`"
    )


def test_a_key_for_a_box_is_as_secret_as_the_others(config: Path) -> None:
    config.write_text('[box_keys]\nprime = "hunter2"\n')
    config.chmod(0o640)
    assert "holds keys and others can read it" in refusal()
    config.chmod(0o600)
    found = settings.load()
    assert found.box_keys["prime"].get_secret_value() == "hunter2"
    assert "hunter2" not in f"{found} {found!r} {found.model_dump()}"
    config.write_text("[box_keys]\nprime = 12345678\n")
    assert refusal() == f"{config}:1: box_keys.prime is not text: it should be a valid string"


def test_a_file_without_keys_may_be_read_by_others(config: Path) -> None:
    config.write_text("max_usd = 5\n")
    config.chmod(0o644)
    assert settings.load().max_usd == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_us = 1\n", "{}:1: max_us is not a setting: did you mean max_usd?"),
        ("\nmax_usd = -1\n", "{}:2: max_usd is -1: it should be greater than 0"),
        ("max_usd = nan\n", "{}:1: max_usd is NaN: it should be a finite number"),
        ("min_guards = 0\n", "{}:1: min_guards is 0: it should be greater than or equal to 1"),
        ('accept_one_guard = "maybe"\n', "{}:1: accept_one_guard is maybe: it should be a valid"),
        ("late_collect_minutes = 61\n", "{}:1: late_collect_minutes is 61: it should be less"),
        ("max_usd = \n", "{}: not TOML: "),
        ("max_usd = 1\nmax_usd = 2\n", "{}: not TOML: "),
        ("state_dir = '/x'\n", "{}:1: state_dir is not a setting: set GPURUN_HOME"),
    ],
)
def test_a_bad_setting_is_placed(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    assert refusal().startswith(message.format(config))


def test_a_bad_key_is_refused_without_being_shown(config: Path) -> None:
    config.write_text("[keys]\nvast = 12345678\n")
    config.chmod(0o600)
    assert refusal() == f"{config}:1: keys.vast is not text: it should be a valid string"


def test_a_file_that_cannot_be_read_is_named(config: Path) -> None:
    config.mkdir()
    assert refusal().startswith(f"{config} cannot be read (Is a directory): ")
    config.rmdir()
    config.write_bytes(b"\xff\xfe")
    assert refusal().startswith(f"{config} cannot be read (not UTF-8): ")


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_MAX_USD", "lots")
    assert refusal() == "GPURUN_MAX_USD is lots: it should be a valid decimal"


def test_a_cap_misspelt_in_the_environment_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_MAX_US", "1")
    assert refusal() == "GPURUN_MAX_US is not a setting: did you mean GPURUN_MAX_USD?"


def test_other_variables_of_ours_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_ARC_DATA", "/somewhere")
    monkeypatch.setenv("GPURUN_HOME", "/somewhere")
    assert settings.load().state_dir == Path("/somewhere")


# Places.


def test_the_state_directory_is_named_by_the_environment() -> None:
    assert state_dir({"GPURUN_HOME": "/a/b"}) == Path("/a/b")
    assert state_dir({"GPURUN_HOME": "rel"}) == Path("rel").absolute()
    assert state_dir({"GPURUN_HOME": "  "}).name == state_dir({}).name == "gpurun"
    assert config_file({"GPURUN_CONFIG": "/a/c.toml"}) == Path("/a/c.toml")
    assert config_file({}).name == "config.toml"


def test_a_home_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="GPURUN_HOME is ~nobody-of-this-name/x"):
        state_dir({"GPURUN_HOME": "~nobody-of-this-name/x"})


def test_the_state_directory_is_made_closed_to_others(tmp_path: Path) -> None:
    places = Places(tmp_path / "a" / "b").ensure()
    assert places.root.stat().st_mode & 0o777 == 0o700
    assert places.ensure() == places


def test_everything_lies_in_the_state_directory(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for path in (places.database, places.blackbox, places.run_dir("ab12"), places.run_lock("ab12")):
        assert path.is_relative_to(tmp_path)
    assert places.run_lock("ab12").parent.exists() is False
    assert places.ensure().run_lock("ab12").parent.is_dir()


@pytest.mark.parametrize("run_id", ["", "..", "../x", "a/b", "A", "a" * 80, "a\nb"])
def test_what_is_no_run_id_makes_no_path(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match="is not a run id"):
        Places(tmp_path).run_dir(run_id)


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="the state directory cannot be made"):
        Places(tmp_path / "file" / "state").ensure()


def test_a_state_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(UsageError, match="others may write in the state directory"):
        Places(tmp_path / "state").ensure()


def test_places_import_nothing_heavy() -> None:
    program = "import sys, gpurun.places; print('pydantic' in sys.modules, len(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False")


def test_the_key_of_a_host_may_lie_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config.toml"
    path.write_text('[[ssh_hosts]]\nhost = "gpu.example.org"\nkey = "~/.ssh/gpu"\n')
    monkeypatch.setenv("GPURUN_CONFIG", str(path))
    [host] = settings.load().ssh_hosts
    assert (host.key, host.port, host.user) == (tmp_path / ".ssh/gpu", 22, "root")


@pytest.mark.parametrize("folder", ["~/runs", "runs", "/a/../b"])
def test_a_workspace_is_named_from_the_root_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    path = tmp_path / "config.toml"
    path.touch(mode=0o600)
    path.write_text(f'[[ssh_hosts]]\nhost = "gpu.example.org"\nworkspace = "{folder}"\n')
    monkeypatch.setenv("GPURUN_CONFIG", str(path))
    with pytest.raises(UsageError, match=r"workspace.*write a path from / on"):
        settings.load()


def test_addresses_of_notify_are_secrets_and_its_events_are_known(config: Path) -> None:
    config.write_text('notify = ["json://hunter2"]\nnotify_on = ["finshed"]\n')
    config.chmod(0o640)
    assert "holds keys and others can read it" in refusal()
    config.chmod(0o600)
    assert "did you mean finished?" in refusal()
    config.write_text('notify = ["json://hunter2"]\nnotify_on = ["finished"]\n')
    assert "hunter2" not in repr(settings.load())
    config.write_text('notify = "hunter2"\n')
    assert "hunter2" not in refusal()
