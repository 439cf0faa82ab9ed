"""`doctor` and `auth` on two emulated accounts that are not as they should be."""

import json
import os
import pty
import subprocess
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import settings as configuration
from gpurun.clock import SystemClock
from gpurun.keystore import store
from gpurun.locks import hold
from gpurun.model import Need
from gpurun.standing import standing
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.account import USER_ID
from tests.homes import GPURUN, Home

WRONG = "0" * 64


@pytest.fixture(scope="module")
def clouds() -> Iterator[tuple[Cloud, Cloud]]:
    with (
        cloud("vast", boxes=StubBoxes()) as vast,
        cloud("prime", boxes=StubBoxes(), credit_usd=Decimal(3)) as prime,
    ):
        yield vast, prime


@pytest.fixture
def vast(clouds: tuple[Cloud, Cloud]) -> Iterator[Cloud]:
    yield clouds[0]
    clouds[0].clear()


@pytest.fixture
def prime(clouds: tuple[Cloud, Cloud]) -> Iterator[Cloud]:
    yield clouds[1]
    clouds[1].clear()


@pytest.fixture
def user(home: Home, vast: Cloud, prime: Cloud) -> Home:
    home.open_account(vast)
    home.open_account(prime)
    return home


def findings(user: Home, *more: str, code: int) -> dict[str, tuple[str, bool]]:
    done = user.run("doctor", "--json", *more)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)["findings"]
    assert len({each["what"] for each in found}) == len(found), "each line has its own name"
    return {each["what"]: (each["says"], each["ok"]) for each in found}


def test_how_far_the_credit_goes_is_said_in_hours_of_the_recipe(user: Home) -> None:
    found = findings(user, code=2)
    says, fit = found["prime: credit"]
    assert says.startswith("$3.00: 0.3 hours of smoke at $8.76/h") and not fit
    says, fit = found["vast: credit"]
    assert says.startswith("$100.00: 13.2 hours of smoke at $7.561667/h") and fit
    assert found["vast: account"] == (str(USER_ID), True)
    assert found["vast: permissions"][1] and found["prime: permissions"][1]
    assert found["prime: SSH key"] == ("one of this machine's is registered", True)
    assert "gpurun auth vast --ssh-key" in found["vast: SSH key"][0]


@pytest.mark.parametrize("provider", ["vast", "prime"])
def test_a_wrong_key_is_one_line_with_its_cure(user: Home, provider: str) -> None:
    """Vast answers 404 to it, as to what is gone; Prime 401."""
    store(user.config, provider, WRONG)
    found = findings(user, code=2)
    ours = {what: said for what, said in found.items() if what.startswith(f"{provider}:")}
    [(what, (says, fit))] = ours.items()
    assert (what, fit) == (f"{provider}: key", False)
    assert f"gpurun auth {provider}" in says
    assert WRONG not in says


def test_a_key_without_a_scope_says_which_and_hides_nothing_else(
    user: Home, vast: Cloud, prime: Cloud
) -> None:
    vast.fault("key_scopes", scopes="misc, user_read")
    prime.fault("key_scopes", scopes="user:read, instances:write, billing:read")
    found = findings(user, code=2)
    assert "lacks Availability (read)" in found["prime: permissions"][0]
    assert found["prime: credit"][0].startswith("$3.00; nothing for smoke now: prime does not let")
    assert not found["vast: the list of instances"][1]
    assert "lacks the scope instance_read" in found["vast: the list of scheduled jobs"][0]
    assert found["vast: the charges"][1]
    assert found["vast: credit"][1]


def test_a_key_that_only_a_shell_has_is_remarked(user: Home, vast: Cloud, prime: Cloud) -> None:
    store_only(user, "prime", prime.api_key)
    user.env["VAST_API_KEY"] = vast.api_key
    found = findings(user, code=2)
    says, fit = found["vast: key's place"]
    assert fit and "`gpurun auth vast` stores it" in says
    assert "prime: key's place" not in found


def test_a_card_that_tops_the_credit_up_is_warned_of(user: Home, vast: Cloud) -> None:
    vast.fault("autobilling", below_usd=10)
    says, fit = findings(user, code=2)["vast: autobilling"]
    assert fit and "the credit is no cap" in says


def test_a_cloud_that_answers_html_and_a_dead_host_hide_nobody(user: Home, prime: Cloud) -> None:
    prime.fault("html")
    user.env["GPURUN_SSH_HOSTS"] = '[{"host": "127.0.0.1", "port": 1}]'
    found = findings(user, code=2)
    assert not found["prime: key"][1]
    assert "cannot be reached" in found["ssh:root@127.0.0.1:1"][0]
    assert found["vast: credit"][1]


def test_a_cloud_that_hangs_costs_its_share_of_time_alone(
    user: Home, prime: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    prime.fault("down", how="hang")
    need = Need("H100", 4, 200)
    began_s = time.monotonic()
    found = standing(
        configuration.load(),
        SystemClock(),
        dict.fromkeys(("vast", "prime"), need),
        "it",
        within_s=6,
    )
    assert time.monotonic() - began_s < 6 + 2
    assert [(each.what, each.ok) for each in found if "prime" in each.what] == [
        ("prime: key", False)
    ]
    assert "vast: credit" in [each.what for each in found]


def test_a_key_that_lacks_something_is_stored_and_that_is_said(
    home: Home, vast: Cloud, prime: Cloud
) -> None:
    home.open_account(prime)
    home.config.unlink()
    prime.fault("key_scopes", scopes="user:read")
    done = subprocess.run(
        [GPURUN, "auth", "prime"],
        env=home.env,
        input=prime.api_key,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "WANT  permissions: the key lacks Availability" in done.stdout
    assert prime.api_key in home.config.read_text()


def test_an_ssh_key_is_registered_once_with_either(user: Home, vast: Cloud) -> None:
    """At Prime the home's key is registered already; at Vast it needs not be."""
    path = str(user.user / ".ssh" / "id_ed25519.pub")
    for provider in ("vast", "vast", "prime"):
        done = user.run("auth", provider, "--ssh-key", path)
        assert done.returncode == 0, done.stderr
        assert f"is let in on new boxes of {provider}" in done.stdout
    assert len(vast.world.account.ssh_keys) == 1
    said = findings(user, code=2)["vast: SSH key"]
    vast.world.account.ssh_keys.clear()
    assert said == ("one of this machine's is registered", True)


@pytest.mark.parametrize("typed", ["key", "end of file"])
def test_a_key_is_typed_unseen(home: Home, vast: Cloud, typed: str, tmp_path: Path) -> None:
    """At a terminal of its own; Ctrl-D is no key."""
    home.env["VAST_URL"] = vast.url
    ours, theirs = pty.openpty()
    with hold(home.places.keeper_lock):
        process = subprocess.Popen(
            [GPURUN, "auth", "vast"],
            env=home.env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        seen = _until(ours, b"(not shown)")
        os.write(ours, f"{vast.api_key}\n".encode() if typed == "key" else b"\x04")
        seen += _until(ours, b"")
        code = process.wait(timeout=60)
    os.close(ours)
    assert vast.api_key.encode() not in seen
    if typed == "key":
        assert code == 0, seen
        assert vast.api_key in home.config.read_text()
    else:
        assert code == 2, seen
        assert b"Nothing was stored" in seen


def store_only(user: Home, provider: str, key: str) -> None:
    user.config.unlink()
    store(user.config, provider, key)


def _until(terminal: int, text: bytes) -> bytes:
    """What is printed until this text comes; all of it, if it is empty."""
    seen = b""
    while not text or text not in seen:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # its last writer has gone
            break
        if not more:
            break
        seen += more
    return seen
