"""What people met who rented at Prime Intellect: each became a promise of the adapter."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
import respx

from gpurun.errors import CreateFailedButMade, CreateUnclear, NoCapacity, NoOffer, ProviderError
from gpurun.model import InstanceState, Need
from gpurun.sshkeys import public_keys
from provisioners.prime import Prime
from provisioners.prime.access import URL, find
from tests.clouds.prime.account import TEAM_ID
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.provisioners.prime.renter import H100X4, LABEL, Renter, adapter

OURS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGdwdXJ1bg me@here"
THEIRS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRoZWly them@there"


# Offers.


def test_user_words_find_the_provider_s_gpus(renter: Renter) -> None:
    def found(gpu: str, count: int) -> set[str]:
        return {str(offer.gpu) for offer in renter.offers(Need(gpu, count, 100))}

    assert found("H100", 1) == {"H100 80GB SXM", "H100 80GB PCIe"}
    assert found("H100 SXM", 1) == {"H100 80GB SXM"}
    assert found("h100 pcie", 1) == {"H100 80GB PCIe"}
    assert found("A100 80GB", 4) == {"A100 80GB SXM"}
    assert found("A100 40GB", 4) == set()
    assert found("L40S", 1) == {"L40S 48GB"}


def test_a_gpu_of_no_maker_is_answered_with_those_that_are_like_it(renter: Renter) -> None:
    with pytest.raises(NoOffer, match=r"knows no GPU 'H1000': did you mean .*H100"):
        renter.offers(Need("H1000", 4, 100))


def test_spot_is_offered_to_who_asks_for_it_and_to_nobody_else(renter: Renter) -> None:
    assert {offer.spot for offer in renter.offers()} == {False}
    [spot] = renter.offers(replace(H100X4, spot=True))
    assert (spot.spot, spot.usd_per_hour) == (True, Decimal("3.50"))
    number = renter.rent(renter.order(spot))
    assert renter.row(number).usd_per_hour == Decimal("3.5")


def test_what_is_listed_but_cannot_be_had_is_not_offered(renter: Renter) -> None:
    assert not [offer for offer in renter.offers() if "US-GA-1" in offer.place]
    with pytest.raises(NoOffer, match="with less than 9000 GB of disk"):
        renter.offers(replace(H100X4, disk_gb=9000))


@pytest.mark.parametrize("disk_gb", [1, 200, 500, 1000])
def test_every_offer_can_be_bought_and_costs_no_more_than_it_said(
    api: Cloud, renter: Renter, disk_gb: int
) -> None:
    """Each row is repeated word for word: data centre, variable price, spot, community price."""
    need = replace(H100X4, disk_gb=disk_gb)
    offers = renter.offers(need) + renter.offers(replace(need, spot=True))
    assert {offer.place.split()[0] for offer in offers} == {
        *("datacrunch", "lambdalabs", "massedcompute", "runpod", "hyperstack")
    }
    for number, offer in enumerate(offers):
        assert offer.disk_gb >= disk_gb
        row = renter.row(renter.rent(renter.order(offer, f"gpurun-{number}")))
        assert row.usd_per_hour is not None
        assert row.usd_per_hour <= offer.usd_per_hour
        assert (row.gpu, row.gpu_count) == (offer.gpu, 4)


def test_an_id_names_one_offer_and_stays_the_same(renter: Renter) -> None:
    first, second = renter.offers(), renter.offers()
    assert [offer.id for offer in first] == [offer.id for offer in second]
    assert len({offer.id for offer in first}) == len(first)
    assert " " not in "".join(offer.id for offer in first)


def test_a_market_of_many_pages_is_read_whole() -> None:
    with cloud("prime", boxes=StubBoxes(), offers=600) as wide:
        prime = adapter(wide, FakeClock())
        everything = list(prime.offers(Need(None, 0, 20)))
        assert len(everything) > 500
        assert len({offer.id for offer in everything}) == len(everything)
        wide.fault("server_error", endpoint="search", status=500, times=1)
        with pytest.raises(ProviderError):
            prime.offers(Need(None, 0, 20))


# Orders.


def test_an_order_is_one_row_with_a_name_a_price_and_nothing_else(renter: Renter) -> None:
    order = renter.order(renter.offer("datacrunch"))
    with respx.mock(assert_all_called=False) as wire:
        post = wire.post(path="/api/v1/pods/").respond(200, text="{}")
        with pytest.raises(CreateUnclear):
            renter.prime.create(order)
    assert post.call_count == 1
    sent = json.loads(post.calls[0].request.content)
    assert sent == {
        "pod": {
            "name": LABEL,
            "cloudId": "4H100.80S.128V",
            "gpuType": "H100_80GB",
            "socket": "SXM5",
            "gpuCount": 4,
            "dataCenterId": "FIN-02",
            "country": "FI",
            "security": "secure_cloud",
            "image": "ubuntu_22_cuda_12",
            "diskSize": 200,
            "maxPrice": 8.9352,
            "autoRestart": False,
        },
        "provider": {"type": "datacrunch"},
    }
    assert type(sent["pod"]["maxPrice"]) is float


def test_the_users_cap_is_the_price_cap_where_it_is_lower(renter: Renter) -> None:
    order = renter.order()
    order = replace(order, max_usd_per_hour=order.offer.usd_per_hour)
    with respx.mock as wire:
        post = wire.post(path="/api/v1/pods/").respond(402, json={"detail": "no"})
        with pytest.raises(NoCapacity):
            renter.prime.create(order)
    assert json.loads(post.calls[0].request.content)["pod"]["maxPrice"] == 8.76


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (400, '{"detail": "Missing field: max_price not specified"}', NoCapacity),
        (422, '{"detail": [{"loc": ["body", "pod"], "msg": "bad"}]}', NoCapacity),
        (307, "", NoCapacity),
        (408, '{"detail": "late"}', CreateUnclear),
        (404, "<html>", CreateUnclear),
        (500, '{"detail": "oops"}', CreateUnclear),
        (200, "[]", CreateUnclear),
        (200, '{"id": null}', CreateUnclear),
        (400, '{"id": "abc", "detail": "no"}', CreateFailedButMade),
    ],
)
def test_an_answer_means_refused_made_or_unclear(
    renter: Renter, status: int, content: str, error: type[Exception]
) -> None:
    order = renter.order()
    with respx.mock as wire:
        wire.post(path="/api/v1/pods/").respond(status, text=content)
        with pytest.raises(error) as raised:
            renter.prime.create(order)
    assert type(raised.value) is error


def test_a_team_pays_for_what_it_orders(api: Cloud, renter: Renter, clock: FakeClock) -> None:
    team = adapter(api, clock, team_id=TEAM_ID)
    assert (team.credit_usd(), renter.prime.credit_usd()) == (250, 100)
    number = team.create(renter.order()).instance_id
    renter.wait(3600)
    assert renter.prime.credit_usd() == 100
    assert int(team.credit_usd() or 0) == 241
    assert team.instance(number) is not None


def test_a_pod_in_the_wrong_team_is_not_what_was_ordered(renter: Renter) -> None:
    order = renter.order()
    with respx.mock as wire:
        wire.post(path="/api/v1/pods/").respond(200, json={"id": "p1", "teamId": TEAM_ID})
        with pytest.raises(CreateFailedButMade, match=f"team is {TEAM_ID}, not None"):
            renter.prime.create(order)


# SSH keys.


def test_nothing_is_rented_that_this_machine_could_not_enter(
    api: Cloud, renter: Renter, clock: FakeClock, boxes: StubBoxes
) -> None:
    prime = adapter(api, clock, public_keys=(OURS,))
    with pytest.raises(NoCapacity, match="no SSH key of this machine is registered"):
        prime.create(renter.order())
    prime.register_ssh_key("theirs", THEIRS)
    prime.register_ssh_key("ours", OURS.replace("me@here", "another comment"))
    assert len(prime.ssh_keys()) == 2
    prime.create(renter.order())
    renter.wait(2)
    assert [key.split()[1] for key in boxes.made[0].keys] == [OURS.split()[1]], "not the primary"


def test_public_keys_are_those_beside_the_key_that_logs_in(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_a.pub").write_text(OURS)
    (tmp_path / ".ssh" / "id_b.pub").write_text(THEIRS)
    (tmp_path / ".ssh" / "broken.pub").write_text("x")
    assert public_keys(None, tmp_path) == (OURS, THEIRS)
    assert public_keys(tmp_path / ".ssh" / "id_b", tmp_path) == (THEIRS,)


def test_the_login_s_user_is_the_pod_s(renter: Renter) -> None:
    number = renter.rent(renter.order(renter.offer("lambdalabs")))
    login = renter.prime.login(number)
    assert (login.user, login.root) == ("ubuntu", "/home/ubuntu/gpurun")


# What the end of this machine would cost.


def test_it_says_in_dollars_what_nothing_else_can_end(prime: Prime) -> None:
    assert not prime.traits.fuse_ends_bill
    assert prime.traits.if_lost == "nothing else can end it: it bills until the wallet is empty."
    prime.credit_usd()
    assert prime.traits.if_lost == "nothing else can end it; your wallet holds $100.00."
    assert "key" not in prime.self_destroy("abc")


def test_disks_that_outlived_their_pods_are_found_and_ended(api: Cloud, renter: Renter) -> None:
    wanted = {"disk": {"size": 1000, "name": "old"}, "provider": {"type": "datacrunch"}}
    httpx.post(f"{api.url}/api/v1/disks", json=wanted, headers=api.headers)
    assert renter.prime.instances() == []
    [disk] = renter.prime.other_holdings()
    assert (disk.state, disk.label, disk.usd_per_hour) == (
        *(InstanceState.STOPPED, "old"),
        Decimal("0.1"),
    )
    assert renter.costs(36000) == 1
    renter.prime.destroy(disk.id)
    assert renter.prime.other_holdings() == []
    assert renter.costs(36000) == 0


# Keys.


def test_no_error_and_no_repr_holds_the_key(api: Cloud, clock: FakeClock) -> None:
    secret = "pit_0123456789"
    prime = adapter(api, clock, api_key=secret)
    with pytest.raises(ProviderError) as raised:
        prime.account()
    assert secret not in f"{raised.value!r} {raised.value.__cause__!r} {vars(prime)}"
    with respx.mock as wire:
        wire.get(path="/api/v1/pods/").respond(400, json={"detail": f"bad key {secret}"})
        with pytest.raises(ProviderError, match=r"bad key \*\*\*"):
            prime.instances()


def test_the_key_is_that_of_the_settings_the_environment_or_the_official_client(
    tmp_path: Path,
) -> None:
    assert find("", {}, tmp_path) is None
    (tmp_path / ".prime").mkdir()
    config = tmp_path / ".prime" / "config.json"
    config.write_text("not json")
    assert find("", {}, tmp_path) is None
    config.write_text(json.dumps({"api_key": "c", "team_id": "t", "ssh_key_path": "/no/key"}))
    clients = find("", {}, tmp_path)
    assert clients is not None
    assert (clients.api_key, clients.team_id, clients.url) == ("c", "t", URL)
    assert (clients.source, clients.key_file) == ("~/.prime/config.json", None)
    environ = {"PRIME_API_KEY": "e", "PRIME_API_BASE_URL": "http://127.0.0.1:1/api/v1/"}
    environs = find("", environ, tmp_path)
    assert environs is not None
    assert (environs.api_key, environs.url) == ("e", "http://127.0.0.1:1")
    settings = find("s", environ, tmp_path)
    assert settings is not None
    assert settings.api_key == "s"
