"""The account at Vast, as `doctor` and `auth` look at it."""

from decimal import Decimal

import pytest

from gpurun.errors import ProviderError
from provisioners.vast import Vast
from tests.clouds.serve import Cloud
from tests.provisioners.vast.conftest import adapter

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "x" * 43 + " somebody@somewhere"


def test_an_account_without_ssh_keys_has_none_and_takes_one(vast: Vast) -> None:
    """Vast answers 404 when there are none; a key is sent as its text."""
    assert vast.ssh_keys() == []
    vast.register_ssh_key("laptop", KEY + "\n")
    assert vast.ssh_keys() == [KEY]
    with pytest.raises(ProviderError, match="invalid ssh public key"):
        vast.register_ssh_key("laptop", "/home/somebody/.ssh/id_ed25519.pub")


@pytest.mark.parametrize(
    ("fault", "values"), [("auth_404", {}), ("html", {"endpoint": "ssh_keys"})]
)
def test_keys_that_cannot_be_asked_for_are_not_no_keys(
    market: Cloud, vast: Vast, fault: str, values: dict[str, object]
) -> None:
    market.fault(fault, **values)
    with pytest.raises(ProviderError):
        vast.ssh_keys()


def test_the_credit_is_exact_dollars(vast: Vast) -> None:
    assert vast.credit_usd() == Decimal(100)


def test_a_good_key_is_remarked_as_one(vast: Vast) -> None:
    vast.register_ssh_key("laptop", KEY)
    assert [(each.what, each.ok) for each in vast.remarks()] == [
        ("permissions", True),
        ("SSH key", True),
    ]


def test_a_wrong_key_says_what_to_run(market: Cloud) -> None:
    (only,) = adapter(market, key="0" * 64).remarks()
    assert not only.ok
    assert "Invalid user key" in only.says
    assert "gpurun auth vast" in only.says


def test_a_key_without_a_scope_says_which(market: Cloud, vast: Vast) -> None:
    vast.register_ssh_key("laptop", KEY)
    market.fault("key_scopes", scopes="misc, user_read")
    wrong = [remark for remark in vast.remarks() if not remark.ok]
    assert [remark.what for remark in wrong] == [
        "the list of instances",
        "the list of scheduled jobs",
    ]
    assert "lacks the scope instance_read" in wrong[0].says


def test_a_key_that_may_not_read_the_bill_rents_all_the_same(market: Cloud, vast: Vast) -> None:
    market.fault("key_scopes", scopes="misc, user_read, instance_read, instance_write")
    said = {each.what: each for each in vast.remarks()}
    assert said["the charges"].ok
    assert "bills stay as reckoned" in said["the charges"].says


def test_who_is_let_in_on_a_box_is_told(market: Cloud, vast: Vast) -> None:
    def said(cloud: Vast) -> tuple[str, bool]:
        return next((r.says, r.ok) for r in cloud.remarks() if r.what == "SSH key")

    here = adapter(market, public_keys=(KEY,))
    assert said(vast) == (
        "none is registered, and none in ~/.ssh here: make one with `ssh-keygen -t ed25519`",
        False,
    )
    assert "`gpurun auth vast --ssh-key" in said(here)[0] and said(here)[1]
    vast.register_ssh_key("laptop", KEY.replace("somebody@somewhere", "me"))
    assert said(here) == ("one of this machine's is registered", True)
    assert said(vast) == ("1 registered, none of them in ~/.ssh here", True)


def test_a_card_that_pays_unasked_is_remarked(market: Cloud, vast: Vast) -> None:
    market.fault("autobilling", below_usd=25)
    [card] = [each for each in vast.remarks() if each.what == "autobilling"]
    assert "below $25" in card.says and "no cap" in card.says
