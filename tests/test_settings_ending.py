"""Settings for ending: whatever is wrong in them, every line that is right counts."""

import json
import os
import string
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from gpurun import mangled, settings
from gpurun.settings import Settings
from tests.homes import Home

KEYS = '[keys]\nvast = "hunter2"\n'
HOSTS = """
[[ssh_hosts]]
host = "one.example.org"
port = 2222

[[ssh_hosts]]
host = "two.example.org"
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("GPURUN_"):
            monkeypatch.delenv(name)
    path = tmp_path / "config.toml"
    path.touch(mode=0o600)
    monkeypatch.setenv("GPURUN_CONFIG", str(path))
    return path


def loaded(config: Path, text: str) -> tuple[Settings, str]:
    config.write_text(text)
    found, trouble = settings.load_for_ending()
    assert "hunter2" not in f"{trouble}{found!r}"
    return found, trouble


def keys(found: Settings) -> dict[str, str]:
    return {name: key.get_secret_value() for name, key in found.keys.items()}


def hosts(found: Settings) -> list[tuple[str, int]]:
    return [(host.host, host.port) for host in found.ssh_hosts]


def test_of_settings_that_are_right_nothing_is_said(config: Path) -> None:
    found, trouble = loaded(config, "max_usd = 5\n" + KEYS + HOSTS)
    assert (trouble, found) == ("", settings.load())


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("max_us = 1", "did you mean max_usd?"),
        ("max_usd = -1", "max_usd is -1"),
        ("min_guards = 0", "min_guards is 0"),
        ("runs_dir = '~nobody-of-this-name/x'", "no such home directory"),
        ("max_usd = ", "not TOML"),
        ("notify = [", "not TOML"),
        ("[secrets", "not TOML"),
        ('"a\nb" = """', "not TOML"),
        pytest.param("x = " + "[" * 5000, "not TOML", id="nested too deeply"),
        pytest.param("x = " + "9" * 5000, "not TOML", id="a number too long"),
    ],
)
def test_a_wrong_line_takes_no_other_with_it(config: Path, line: str, named: str) -> None:
    found, trouble = loaded(config, f"leave_after_minutes = 7\n{line}\n{KEYS}{HOSTS}")
    assert trouble.startswith("going on without what is wrong in the settings: ")
    assert named in trouble
    assert "\n" not in trouble
    assert found.leave_after_minutes == 7
    assert keys(found) == {"vast": "hunter2"}
    assert hosts(found) == [("one.example.org", 2222), ("two.example.org", 22)]


def test_a_wrong_key_takes_no_other_with_it(config: Path) -> None:
    found, trouble = loaded(config, KEYS + "prime = 12345678\n")
    assert keys(found) == {"vast": "hunter2"}
    assert "keys.prime is not text" in trouble


@pytest.mark.parametrize("wrong", ['port = "ssh"', "port = ", "prot = 23", "prot = "])
def test_a_host_that_is_wrong_in_part_is_no_host(config: Path, wrong: str) -> None:
    """Without its port it would be another machine."""
    text = KEYS + HOSTS.replace("port = 2222", wrong)
    found, _ = loaded(config, text)
    assert hosts(found) == [("two.example.org", 22)]
    assert keys(found) == {"vast": "hunter2"}


def test_under_a_wrong_head_no_line_is_right(config: Path) -> None:
    """They would be taken for those of the table before."""
    found, _ = loaded(config, KEYS + '[box_keys\nprime = "hunter2"\n[secrets]\nA = "b"\n')
    assert keys(found) == {"vast": "hunter2"}
    assert found.secrets["A"].get_secret_value() == "b"


def test_a_file_that_others_can_read_still_ends_a_box(config: Path) -> None:
    config.chmod(0o644)
    found, trouble = loaded(config, KEYS)
    assert keys(found) == {"vast": "hunter2"}
    assert f"run `chmod 600 {config}`" in trouble


def test_a_value_over_several_lines_is_read_beside_a_wrong_one(config: Path) -> None:
    found, _ = loaded(config, 'max_usd = \nssh_hosts = [\n  {host = "one"},\n]\n' + KEYS)
    assert hosts(found) == [("one", 22)]
    assert keys(found) == {"vast": "hunter2"}


def test_a_wrong_variable_takes_no_line_with_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_MAX_USD", "lots")
    monkeypatch.setenv("GPURUN_NOTIFY", "{")
    monkeypatch.setenv("GPURUN_KEYS", '{"vast": 7, "prime": "hunter2"}')
    monkeypatch.setenv("GPURUN_LOCAL_USD_PER_HOUR", "1.50")
    found, trouble = loaded(config, "max_usd = 5\n" + KEYS)
    assert "GPURUN_" in trouble
    assert (found.max_usd, found.notify) == (5, ())
    assert keys(found) == {"vast": "hunter2", "prime": "hunter2"}
    assert found.local_usd_per_hour == Decimal("1.50")


def test_keys_in_the_environment_need_no_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_KEYS", '{"vast": "hunter2"}')
    config.write_bytes(b"\xff\xfe\0")
    found, trouble = settings.load_for_ending()
    assert "not UTF-8" in trouble
    assert keys(found) == {"vast": "hunter2"}


def test_not_even_the_name_of_the_file_must_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_CONFIG", "~nobody-of-this-name/x")
    found, trouble = settings.load_for_ending()
    assert "GPURUN_CONFIG is ~nobody-of-this-name/x" in trouble
    assert found.keys == {}


def test_the_same_table_twice_is_read_twice_and_what_stands_first_counts(config: Path) -> None:
    text = "max_usd = 5\nmax_usd = 6\n" + KEYS + '[keys]\nvast = "later"\nprime = "hunter2"\n'
    found, _ = loaded(config, text)
    assert keys(found) == {"vast": "hunter2", "prime": "hunter2"}
    assert found.max_usd == 5


@pytest.mark.parametrize(
    "rest", ['[[ssh_hosts]]\nhost = "{}"\n', "{} =\n", "a{} = 1\n", "x{} = [\n"]
)
def test_of_a_long_file_each_line_is_read_a_few_times(
    monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    """Not all that stands above it again: the keeper would start too late."""
    read = []

    def counted(text: str, **how: Any) -> dict[str, Any]:
        read.append(len(text))
        return toml(text, **how)

    toml = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", counted)
    text = "max_usd =\n" + "".join(map(rest.format, range(1000))) + KEYS
    found = mangled.understood(text)
    assert found["keys"] == {"vast": "hunter2"}
    assert len(read) <= 20 * text.count("\n")
    assert sum(read) <= 250 * len(text)


values = st.recursive(
    st.sampled_from(["1", "-1", "nan", "1e400", "true", '"x"', "1979-05-27", "0x1", "", "[", "{"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
    max_leaves=4,
)
names = st.sampled_from([*Settings.model_fields, "keys.vast", "ssh_hosts.port", "max_us", "a.b"])
heads = st.sampled_from(
    ["[keys]", "[[ssh_hosts]]", "[secrets", "[max_usd]", "[box_keys]", "[[keys]]"]
)
lines = st.one_of(
    st.builds(lambda name, value: f"{name} = {value}", names, values),
    heads,
    st.text(string.printable, max_size=12),
    st.text(max_size=5),
)


@how(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=st.lists(lines, max_size=6), after=st.lists(lines, max_size=6))
def test_however_a_file_is_mangled_it_is_read_and_a_right_key_is_kept(
    config: Path, before: list[str], after: list[str]
) -> None:
    """Kept as long as what stands above it does not make it part of something else."""
    text = "\n".join([*before, KEYS, *after])
    config.write_text(text, encoding="utf-8", errors="surrogatepass")
    found, trouble = settings.load_for_ending()
    assert trouble == "" or "\n" not in trouble
    above = "\n".join(before)
    if all(word not in above for word in ("keys", '"""', "'''")) and "vast" not in "".join(after):
        assert keys(found).get("vast") == "hunter2", trouble


@how(deadline=None, derandomize=True)
@given(st.text(max_size=200))
def test_what_is_toml_is_understood_as_it_is(text: str) -> None:
    try:
        right = tomllib.loads(text, parse_float=Decimal)
    except ValueError:
        mangled.understood(text)
    else:
        assert mangled.understood(text) == right


def test_what_the_keeper_goes_on_without_is_said_by_status_and_doctor(home: Home) -> None:
    home.config.write_text("max_usd_per_day = -1\n")
    assert home.run("keeper", "start").returncode == 0
    home.until(lambda: "max_usd_per_day is -1" in home.places.settings_trouble())
    status = home.run("status")
    assert status.returncode == 0
    assert "gpurun: the keeper is going on without what is wrong" in status.stderr
    found = json.loads(home.run("doctor", "--json").stdout)["findings"]
    assert [each["ok"] for each in found if each["what"] == "settings"] == [False]
    home.config.write_text("max_usd_per_day = 1\n")
    home.kill_keeper()
    assert home.run("keeper", "start").returncode == 0
    home.until(lambda: home.places.settings_trouble() == "")


def test_an_orphan_is_looked_for_with_settings_that_are_wrong_in_part(home: Home) -> None:
    home.config.write_text("max_us = 1\n")
    done = home.run("orphans", "--json")
    assert (done.returncode, json.loads(done.stdout)["orphans"]) == (0, [])
    assert "did you mean max_usd?" in done.stderr
