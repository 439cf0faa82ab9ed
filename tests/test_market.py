"""`offers`, `auth` and `doctor` as processes, over both emulated clouds at once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import UsageError
from gpurun.keystore import store
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes

KEY = "pit_of_the_test"
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGdwdXJ1bg me@here"


@dataclass
class User:
    """A home of its own, and the commands run there."""

    home: Path
    prime: Cloud
    vast: Cloud

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    def run(
        self, *arguments: str, stdin: str = "", code: int = 0, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        kept = ("GPURUN_", "PRIME_", "VAST_", "COLUMNS")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(kept)} | {
            "HOME": str(self.home),
            "GPURUN_HOME": str(self.home / "state"),
            "GPURUN_CONFIG": str(self.config),
            "PRIME_API_BASE_URL": self.prime.url,
            "VAST_URL": self.vast.url,
        }
        done = subprocess.run(
            [sys.executable, "-m", "gpurun.cli", *arguments],
            env=environment | more,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        for key in (self.prime.api_key, self.vast.api_key):
            assert key not in done.stdout + done.stderr
        return done

    def offers(self, *arguments: str, **more: str) -> dict[str, Any]:
        done = self.run("offers", *arguments, "--json", **more)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def findings(self, **more: Any) -> dict[str, tuple[str, bool]]:
        document = json.loads(self.run("doctor", "--json", **more).stdout)
        return {each["what"]: (each["says"], each["ok"]) for each in document["findings"]}


@pytest.fixture(scope="module")
def clouds() -> Iterator[tuple[Cloud, Cloud]]:
    with (
        cloud("prime", boxes=StubBoxes()) as prime,
        cloud("vast", boxes=StubBoxes()) as vast,
    ):
        yield prime, vast


@pytest.fixture
def user(clouds: tuple[Cloud, Cloud], tmp_path: Path) -> Iterator[User]:
    """With a key for both."""
    prime, vast = clouds
    config = tmp_path / "config.toml"
    store(config, "prime", prime.api_key)
    store(config, "vast", vast.api_key)
    yield User(tmp_path, prime, vast)
    prime.clear()
    vast.clear()


# Offers.


def test_both_markets_are_one_table_the_cheapest_first(user: User) -> None:
    found = user.offers("--gpu", "H100 SXM", "-n", "4")
    rates = [Decimal(offer["usd_per_hour"]) for offer in found["offers"]]
    assert {offer["provider"] for offer in found["offers"]} == {"prime", "vast"}
    assert rates == sorted(rates)
    assert {offer["spot"] for offer in found["offers"]} == {False}
    table = user.run("offers", "--gpu", "H100 SXM", "-n", "4").stdout.splitlines()
    assert table[0].split()[:4] == ["PROVIDER", "GPU", "VRAM", "DISK"]
    assert len(table) == 1 + len(rates)
    assert all(offer["id"] in "\n".join(table) for offer in found["offers"])


def test_the_disk_that_is_asked_is_in_the_price(user: User) -> None:
    def cheapest(provider: str, disk: str) -> Decimal:
        asked = ("--gpu", "H100", "-n", "4", "--provider", provider, "--disk", disk)
        return Decimal(user.offers(*asked)["offers"][0]["usd_per_hour"])

    for provider in ("prime", "vast"):
        assert cheapest(provider, "1000") > cheapest(provider, "20")


def test_a_recipe_is_priced_at_each_offer(user: User) -> None:
    found = user.offers("--recipe", "smoke")["offers"]
    expected = [Decimal(offer["expected_usd"]) for offer in found]
    assert expected == sorted(expected)
    for offer in found:
        assert Decimal(offer["expected_usd"]) <= Decimal(offer["run_usd"])
        if offer["provider"] != "local":  # for which the recipe asks less
            assert offer["disk_gb"] >= 200
            assert "H100" in offer["gpu"]
    assert {"prime", "vast"} <= {offer["provider"] for offer in found}


def test_what_is_sorted_by_comes_best_first(user: User) -> None:
    asked = ("--gpu", "H100", "-n", "1")
    for key, column in (("network", "down_mbps"), ("reliability", "reliability")):
        values = [o[column] or 0 for o in user.offers(*asked, "--sort", key)["offers"]]
        assert values == sorted(values, reverse=True)


def test_spot_is_shown_on_request_alone(user: User) -> None:
    found = user.offers("--gpu", "H100", "-n", "4", "--spot")["offers"]
    assert {(offer["provider"], offer["spot"]) for offer in found} == {
        *(("prime", True), ("vast", True))
    }


def test_a_dead_provider_is_told_and_hides_nobody(user: User) -> None:
    user.prime.fault("key_revoked")
    found = user.offers("--gpu", "H100", "-n", "4")
    assert {offer["provider"] for offer in found["offers"]} == {"vast"}
    [silent] = [each for each in found["silent"] if each["provider"] == "prime"]
    assert "run `gpurun auth prime`" in silent["why"]
    plain = user.run("offers", "--gpu", "H100", "-n", "4")
    assert "nothing from prime" in plain.stderr
    assert "vast" in plain.stdout


@pytest.mark.parametrize("how", ["hang", "drop"])
def test_a_provider_that_does_not_answer_costs_five_seconds(user: User, how: str) -> None:
    user.prime.fault("down", how=how)
    began_s = time.monotonic()
    found = user.offers("--gpu", "H100", "-n", "4")
    assert time.monotonic() - began_s < 5 + 4  # and the start of Python on a busy machine
    assert {offer["provider"] for offer in found["offers"]} == {"vast"}
    whys = {each["provider"]: each["why"] for each in found["silent"]}
    assert "answer" in whys["prime"]


def test_what_nobody_has_says_what_there_is(user: User) -> None:
    unknown = user.run("offers", "--gpu", "H1000", "-n", "4", code=3).stderr
    assert "did you mean" in unknown
    assert "H100" in unknown
    dear = user.run("offers", "--gpu", "H100", "-n", "4", "--max-price", "1", code=3).stderr
    assert "the cheapest is " in dear
    many = user.run("offers", "--gpu", "H100", "-n", "4096", code=3).stderr
    assert "Ask for less" in many
    assert user.run("offers", "--gpu", "H100", "--provider", "nope", code=2)


def test_all_dead_is_exit_4(user: User) -> None:
    user.prime.fault("html")
    user.vast.fault("html")
    assert "prime" in user.run("offers", "--gpu", "H100", "-n", "4", code=4).stderr


def test_a_cloud_without_a_key_is_not_asked_unless_it_is_named(user: User) -> None:
    user.config.write_text(f'[keys]\nprime = "{user.prime.api_key}"\n')
    found = user.offers("--gpu", "H100", "-n", "4")
    assert {offer["provider"] for offer in found["offers"]} == {"prime"}
    assert "vast" not in {each["provider"] for each in found["silent"]}
    named = user.run("offers", "--gpu", "H100", "--provider", "vast", code=2)
    assert "run `gpurun auth vast`" in named.stderr


# Keys.


def test_a_key_comes_from_stdin_is_tried_and_lies_in_the_settings_alone(user: User) -> None:
    user.config.write_text("# mine\nmax_usd = 20 # a cap\n")
    user.config.chmod(0o644)
    said = user.run("auth", "prime", "--json", stdin=f"{user.prime.api_key}\n").stdout
    assert json.loads(said)["account"].startswith("c")
    assert json.loads(said)["stored_in"] == str(user.config)
    text = user.config.read_text()
    assert text.startswith("# mine\nmax_usd = 20 # a cap\n")
    assert f'[keys]\nprime = "{user.prime.api_key}"' in text
    assert user.config.stat().st_mode & 0o777 == 0o600


def test_a_key_that_is_refused_is_not_stored(user: User) -> None:
    before = user.config.read_text()
    for provider in ("prime", "vast"):
        assert f"gpurun auth {provider}" in user.run("auth", provider, stdin=KEY, code=4).stderr
    assert user.config.read_text() == before


def test_no_key_and_no_cloud_are_bad_use(user: User) -> None:
    before = user.config.read_text()
    assert "Nothing was stored" in user.run("auth", "prime", code=2).stderr
    assert "Nothing was stored" in user.run("auth", "prime", stdin="a b\n", code=2).stderr
    assert "prime, vast" in user.run("auth", "local", stdin="x", code=2).stderr
    assert user.config.read_text() == before


def test_a_key_is_stored_though_the_cloud_is_down(user: User) -> None:
    user.config.unlink()
    user.prime.fault("down")
    done = user.run("auth", "prime", stdin=user.prime.api_key)
    assert "without being checked" in done.stderr
    assert user.prime.api_key in user.config.read_text()


def test_a_file_is_only_replaced_when_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    store(path, "vast", "a")
    assert path.read_text() == '[keys]\nvast = "a"\n'
    path.write_text('[keys]  # all\nvast = "a" # old\n\n[[ssh_hosts]]\nhost = "h"\n')
    store(path, "vast", 'b"\\')
    store(path, "prime", "c")
    assert path.read_text() == (
        '[keys]  # all\nprime = "c"\nvast = "b\\"\\\\"\n\n[[ssh_hosts]]\nhost = "h"\n'
    )
    for odd in ('keys = {vast = "a"}\n', 'keys.vast = "a"\n', "not toml"):
        path.write_text(odd)
        with pytest.raises(UsageError):
            store(path, "prime", "c")
        assert path.read_text() == odd
    assert [each.name for each in path.parent.iterdir()] == ["config.toml"]


# Doctor.


def test_doctor_says_how_the_user_stands_with_each_cloud(user: User) -> None:
    found = user.findings(code=2)
    assert found["prime: key"] == ("from the settings", True)
    assert found["prime: permissions"] == ("all that a run needs", True)
    assert "hours of smoke at $" in found["prime: credit"][0]
    assert "hours of smoke at $" in found["vast: credit"][0]
    assert "accept-one-guard" in found["prime: guards"][0]
    said, fit = found["prime: SSH key"]
    assert not fit
    assert "gpurun auth prime --ssh-key" in said


def test_doctor_wants_permissions_and_credit(user: User) -> None:
    user.prime.fault("key_scopes", scopes="user:read, availability:read, billing:read")
    user.prime.fault("credit_zero")
    found = user.findings(code=2)
    assert "lacks Instances (read and write)" in found["prime: permissions"][0]
    assert not found["prime: permissions"][1]
    assert found["prime: credit"][0].startswith("$0.00: 0.0 hours")
    assert not found["prime: credit"][1]


def test_the_ssh_key_that_is_registered_is_found(user: User) -> None:
    (user.home / ".ssh").mkdir()
    (user.home / ".ssh" / "id_ed25519.pub").write_text(SSH_KEY)
    path = str(user.home / ".ssh" / "id_ed25519")
    assert "is let in" in user.run("auth", "prime", "--ssh-key", path).stdout
    user.run("auth", "prime", "--ssh-key", path)
    assert len(user.prime.world.account.ssh_keys) == 1, "registered once"
    assert user.findings()["prime: SSH key"][1]


def test_without_keys_doctor_says_how_to_store_them(user: User) -> None:
    user.config.unlink()
    found = user.findings()
    assert found["prime"] == ("no key; `gpurun auth prime` stores one", True)
    assert found["vast"] == ("no key; `gpurun auth vast` stores one", True)
