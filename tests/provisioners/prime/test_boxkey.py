"""A key that the user made for the box: who takes it, and what the fuse does with it there."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpurun import web
from gpurun.errors import AccountRefused, NoCapacity, ProviderError
from gpurun.hardware.models import is_the
from gpurun.provider import KeyOnBox, Rehearsal
from provisioners.prime import Prime
from provisioners.prime.access import Access, find
from tests.clouds.serve import Cloud
from tests.fakecloud import FakeClock
from tests.provisioners.prime.renter import Renter, adapter

BOX_KEY = "pit_made_for_the_box_1234"


class BothKeys(httpx.BaseTransport):
    """The emulated account has one key: here it is whichever of the two is used."""

    def __init__(self, api: Cloud, inner: httpx.BaseTransport) -> None:
        self._api, self._inner, self._keys = api, inner, (api.api_key, BOX_KEY)
        self.scopes = ""  # of the key for the box; empty: all

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["authorization"].removeprefix("Bearer ")
        if key in self._keys:
            self._api.world.api_key = key
        if key == BOX_KEY and self.scopes:
            self._api.fault("key_scopes", scopes=self.scopes)
        else:
            self._api.clear("key_scopes")
        return self._inner.handle_request(request)


@pytest.fixture
def keys(api: Cloud) -> BothKeys:
    return BothKeys(api, httpx.HTTPTransport())


def keyed(api: Cloud, clock: FakeClock, keys: BothKeys, box_key: str = BOX_KEY) -> Prime:
    access = Access(api.api_key, "the test", api.url, box_key=box_key)
    http = web.client("prime", access.url, access.api_key, (), clock)
    own = httpx.Client(base_url=http.base_url, headers=http.headers, transport=keys)
    return Prime(access, own, is_the)


# What it changes.


def test_with_a_key_the_fuse_ends_the_bill_and_before_contact_it_does_not(
    api: Cloud, clock: FakeClock, keys: BothKeys
) -> None:
    prime = keyed(api, clock, keys)
    assert isinstance(prime, KeyOnBox) and isinstance(prime, Rehearsal)
    assert prime.traits.fuse_ends_bill
    prime.credit_usd()
    assert "until gpurun has reached the box, nothing else can end it" in prime.traits.if_lost
    assert prime.traits.if_lost.endswith("your wallet holds $100.00.")
    assert prime.box_key() == BOX_KEY
    assert prime.box_key_file("ab12") == "/dev/shm/gpurun-key-ab12"


def test_without_one_no_key_goes_to_the_box(prime: Prime) -> None:
    assert prime.box_key() == ""
    assert prime.self_destroy("ab12") == prime.rehearsal("ab12") == "exit 1"


def test_it_is_in_no_text_and_in_nothing_that_is_printed(
    api: Cloud, clock: FakeClock, keys: BothKeys
) -> None:
    prime = keyed(api, clock, keys)
    found = find("an account's key", {}, Path("/nowhere"), f" {BOX_KEY}\n")
    assert found is not None and found.box_key == BOX_KEY
    said = f"{found!r} {prime.self_destroy('ab12')} {prime.rehearsal('ab12')} {prime.traits}"
    assert BOX_KEY not in said


@pytest.mark.parametrize("number", ["", "a/../b", "x y", "$(reboot)"])
def test_what_is_no_id_gets_into_no_text(
    api: Cloud, clock: FakeClock, keys: BothKeys, number: str
) -> None:
    prime = keyed(api, clock, keys)
    for make in (prime.self_destroy, prime.rehearsal, prime.box_key_file):
        with pytest.raises(ProviderError, match="not the id of a pod"):
            make(number)


# Before the purchase.


def test_a_key_that_could_end_pods_is_bought_with(
    api: Cloud, clock: FakeClock, keys: BothKeys
) -> None:
    keys.scopes = "instances:write, user:read"
    renter = Renter(api, keyed(api, clock, keys), clock)
    assert renter.rent() in renter.alive()


def test_a_key_that_may_not_say_whose_it_is_is_left_to_the_rehearsal(
    api: Cloud, clock: FakeClock, keys: BothKeys
) -> None:
    keys.scopes = "instances:write"
    renter = Renter(api, keyed(api, clock, keys), clock)
    assert renter.rent() in renter.alive()


@pytest.mark.parametrize(
    ("box_key", "scopes", "says"),
    [
        (BOX_KEY, "instances:read, user:read", "lacks the permission Instances"),
        ("pit_that_has_expired", "", "may have expired"),
        ('pit"of;rm', "", "is not a key"),
    ],
)
def test_with_a_key_that_cannot_end_a_pod_nothing_is_bought(
    api: Cloud, clock: FakeClock, keys: BothKeys, box_key: str, scopes: str, says: str
) -> None:
    keys.scopes = scopes
    renter = Renter(api, keyed(api, clock, keys, box_key), clock)
    order = renter.order()
    with pytest.raises(AccountRefused, match=says) as caught:
        renter.prime.create(order)
    assert "nothing was made" in str(caught.value)
    assert box_key not in str(caught.value)
    assert not api.meter().instances
    [finding] = [each for each in renter.prime.remarks() if each.what == "key for the box"]
    assert not finding.ok and says in finding.says


def test_the_account_s_own_key_never_goes_to_a_box(api: Cloud, clock: FakeClock) -> None:
    prime = adapter(api, clock, box_key=api.api_key)
    assert prime.box_key() == "" and not prime.traits.fuse_ends_bill
    with pytest.raises(AccountRefused, match="the account's own key"):
        prime.create(Renter(api, prime, clock).order())
    assert not api.meter().instances


def test_while_nobody_can_tell_nothing_is_bought(
    api: Cloud, clock: FakeClock, keys: BothKeys
) -> None:
    prime = keyed(api, clock, keys)
    order = Renter(api, prime, clock).order()
    api.fault("server_error", endpoint="user")
    with pytest.raises(NoCapacity, match="nothing was made"):
        prime.create(order)
    assert not api.meter().instances


def test_doctor_says_what_else_the_key_may_do(api: Cloud, clock: FakeClock, keys: BothKeys) -> None:
    prime = keyed(api, clock, keys)
    found = {each.what: each for each in prime.remarks()}
    assert "ssh_keys" in found["key for the box"].says and found["key for the box"].ok
    assert found["guards"].says.startswith("two")
    keys.scopes = "instances:write, user:read"
    assert {e.what: e.says for e in prime.remarks()}["key for the box"] == "can end a pod"


# On the box, in a real shell.


class Pod:
    """A pod that runs, the key in its file, and the shell there."""

    def __init__(self, renter: Renter, prime: Prime, tools: Path) -> None:
        self.renter, self.prime, self.id = renter, prime, renter.rent()
        self.file = Path(prime.box_key_file(self.id))
        self.file.write_text(f"{BOX_KEY}\n")
        renter.api.world.api_key = BOX_KEY  # the account's own is revoked
        self._tools = tools

    def sh(self, text: str) -> int:
        """The text's exit code; the key is in no output, and was nobody's argument."""
        environment = {"PATH": str(self._tools), "HOME": "/nonexistent"}
        done = subprocess.run(
            ["/bin/dash", "-c", text], env=environment, capture_output=True, timeout=60, check=False
        )
        argv = self._tools / "argv"
        assert BOX_KEY.encode() not in done.stdout + done.stderr
        assert not argv.exists() or BOX_KEY not in argv.read_text()
        return done.returncode

    def ends(self) -> bool:
        """Whether the text says that the pod is gone."""
        return self.sh(self.prime.self_destroy(self.id)) == 0

    def lives(self) -> bool:
        self.renter.wait(60)
        return self.id in self.renter.alive()


@pytest.fixture(params=["curl", "python3"])
def pod(
    request: pytest.FixtureRequest,
    renter: Renter,
    api: Cloud,
    clock: FakeClock,
    keys: BothKeys,
    tmp_path: Path,
) -> Iterator[Pod]:
    """Once with curl alone, once with Python alone."""
    for name in ("tr", request.param):
        found = shutil.which(name) if name != "python3" else os.path.realpath("/proc/self/exe")
        assert found, f"{name} is needed"
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "$*" >> {tmp_path}/argv\nexec {found} "$@"\n'
        )
        (tmp_path / name).chmod(0o755)
    pod = Pod(renter, keyed(api, clock, keys), tmp_path)
    yield pod
    pod.file.unlink(missing_ok=True)


def test_the_text_ends_the_one_pod_that_it_names(pod: Pod) -> None:
    pod.renter.api.world.api_key = pod.renter.api.world.account.api_key
    other = pod.renter.rent(pod.renter.order(label="gpurun-aaaaaa-bbbbbb-cccc02"))
    pod.renter.api.world.api_key = BOX_KEY
    assert pod.ends()
    assert not pod.lives()
    assert pod.renter.alive() == {other}


def test_the_rehearsal_ends_nothing(pod: Pod) -> None:
    assert pod.sh(pod.prime.rehearsal(pod.id)) == 0
    assert pod.lives()
    assert pod.sh(pod.prime.rehearsal("0123456789abcdef")) == 1


def test_once_it_is_ended_that_is_enough(pod: Pod) -> None:
    assert pod.ends()
    assert not pod.lives()
    assert pod.ends()


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("key_revoked", {}),
        ("key_scopes", {"scopes": "instances:read"}),
        ("html", {"endpoint": "destroy", "when": "before"}),
        ("server_error", {"endpoint": "destroy", "status": 404, "body": "html"}),
        ("server_error", {"endpoint": "destroy", "status": 404, "body": "json"}),
        ("server_error", {"endpoint": "destroy", "body": "json"}),
        ("down", {}),
    ],
)
def test_what_is_not_the_api_s_own_word_is_no_end(
    pod: Pod, fault: str, values: dict[str, object]
) -> None:
    pod.renter.api.fault(fault, **values)
    assert not pod.ends()
    assert pod.lives()
    pod.renter.api.clear()
    assert pod.ends()
    assert not pod.lives()


def test_a_missing_slash_is_no_obstacle(pod: Pod) -> None:
    pod.renter.api.fault("redirects")
    assert pod.sh(pod.prime.rehearsal(pod.id)) == 0
    assert pod.ends()
    assert not pod.lives()


def test_a_404_that_ended_it_counts_because_the_row_is_404_too(pod: Pod) -> None:
    pod.renter.api.fault("delete_404", times=1)
    assert pod.ends()
    assert not pod.lives()


def test_without_its_file_nothing_is_asked(pod: Pod) -> None:
    pod.file.unlink()
    assert not pod.ends()
    assert pod.sh(pod.prime.rehearsal(pod.id)) == 1
    assert pod.lives()
