"""Faults of the emulated Prime Intellect in lists, in the life of a pod and at its end.

As in test_faults.py: $8.76/h, and "$0.00" is what was billed from the first DELETE on.
"""

from decimal import Decimal

import pytest

from gpurun.errors import CreateFailedButMade, ProviderError, ProviderUnreachable
from gpurun.model import InstanceState
from provisioners.prime import Prime
from tests.clouds.prime.account import TEAM_ID
from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.provisioners.prime.renter import LABEL, USD, Renter, adapter

FREE, CENT = Decimal("0.00"), Decimal("0.01")


# Lists and rows.


def test_a_pod_that_is_listed_late_is_found_when_it_is(api: Cloud, renter: Renter) -> None:
    api.fault("list_lag_s", seconds=45)
    number = renter.rent()
    assert renter.labels() == []
    assert renter.row(number).label == LABEL
    renter.wait(45)
    assert renter.labels() == [LABEL]
    assert renter.end(number) == FREE


def test_an_empty_list_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("list_empty")
    api.fault("delete_lies", times=1)
    assert renter.prime.instances() == []
    # The first DELETE is a lie; the row by id beats the lists, so there is a second one.
    assert renter.end(number) == Decimal("0.05")


def test_a_list_that_is_not_whole_is_an_error(api: Cloud, renter: Renter) -> None:
    renter.rent()
    api.fault("list_page_fails", page=1)
    with pytest.raises(ProviderUnreachable):
        renter.prime.instances()
    api.clear()
    for by in (1, -1):
        api.fault("total_wrong", by=by)
        with pytest.raises(ProviderError, match="not complete"):
            renter.prime.instances()
    api.clear()
    api.fault("list_twins")
    with pytest.raises(ProviderError, match="not complete"):
        renter.prime.instances()
    api.clear()
    assert renter.end(renter.prime.instances()[0].id) == FREE


def test_a_row_that_flickers_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("flicker")
    api.fault("delete_lies", times=1)
    assert renter.end(number) <= Decimal("0.05")


def test_what_comes_back_after_its_end_is_ended_again(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("reappear_after_s", seconds=10)
    assert renter.end(number) == Decimal("0.10")  # seen in the second round, ended in the third


def test_a_teams_pod_that_no_list_shows_is_shown_by_id_and_ended(
    api: Cloud, renter: Renter
) -> None:
    renter.prime = adapter(api, renter.clock, team_id=TEAM_ID)
    assert renter.prime.account().endswith(f"/{TEAM_ID}")
    number = renter.rent()
    api.fault("team_pods_hidden")
    assert renter.labels() == []
    assert renter.row(number).id == number
    assert renter.end(number) == FREE


def test_a_404_of_a_living_pod_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("pod_404", times=5)
    assert renter.prime.instance(number) is None
    assert renter.labels() == [LABEL]
    assert renter.end(number) == FREE


def test_nulls_and_fractions_blind_nobody(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("fractional_numbers")
    api.fault("null_fields", fields="priceHr,createdAt,gpuName,gpuCount,socket,name")
    [row] = renter.prime.instances()
    assert (row.id, row.usd_per_hour, row.created_at, row.gpu) == (number, None, None, None)
    api.clear()
    api.fault("null_fields", fields="id")
    with pytest.raises(ProviderError):
        renter.prime.instances()
    api.clear()
    assert renter.end(number) == FREE


@pytest.mark.parametrize(
    ("shape", "user", "port"),
    [
        ("list", "root", 22),
        ("nodes", "root", 22),
        ("null", "root", 22),  # from the address and the port map
        ("no_port", "root", 22),
        ("with_ssh", "root", 22),
        ("list_null", None, None),
        ("placeholder", None, None),
    ],
)
def test_every_shape_of_a_connection(
    api: Cloud, renter: Renter, shape: str, user: str | None, port: int | None
) -> None:
    number = renter.rent()
    api.fault("ssh_shape", shape=shape)
    if user is None:
        with pytest.raises(ProviderError, match="does not tell yet"):
            renter.prime.login(number)
    else:
        login = renter.prime.login(number)
        assert (login.user, login.addresses) == (user, (("192.0.2.1", port),))
        assert (login.name, login.root) == (f"prime-{number}", "/root/gpurun")
    assert renter.end(number) == FREE


# The life of a pod.


def test_a_pod_is_starting_until_its_image_is_installed(api: Cloud, renter: Renter) -> None:
    api.fault("boot_s", seconds=900)
    number = renter.create()
    assert renter.row(number).state is InstanceState.STARTING
    assert renter.costs(899) == round(USD * 599 / 3600, 2)
    api.advance(1)
    assert renter.row(number).state is InstanceState.STARTING, "ACTIVE, but installing"
    renter.wait(1)
    assert renter.row(number).state is InstanceState.RUNNING
    assert renter.end(number) == FREE


def test_a_pod_that_stays_pending_bills(api: Cloud, renter: Renter) -> None:
    api.fault("stuck", status="PENDING")
    number = renter.rent()
    assert renter.row(number).state is InstanceState.STARTING
    assert renter.row(number).usd_per_hour == USD
    assert renter.end(number) == FREE


def test_pods_that_will_never_run_are_told_at_once(api: Cloud, renter: Renter) -> None:
    api.fault("start_fails")
    broken = renter.rent()
    api.clear()
    api.fault("installation_error")
    spoilt = renter.rent(renter.order(label="gpurun-b"))
    rows = [renter.row(number) for number in (broken, spoilt)]
    assert {(row.state, row.usd_per_hour) for row in rows} == {(InstanceState.STOPPED, USD)}
    assert renter.end(spoilt) == round(USD * 40 / 3600, 2), "the other one bills meanwhile"
    assert renter.end(broken) == FREE


def test_another_gpu_than_was_ordered_is_in_the_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("wrong_gpu", gpu="A100_40GB", where="row")
    with pytest.raises(CreateFailedButMade, match="GPU is A100_40GB, not H100_80GB") as made:
        renter.prime.create(order)
    assert renter.end(made.value.instance_id) == FREE


def test_a_pod_that_nobody_can_reach_is_ended_all_the_same(
    api: Cloud, renter: Renter, boxes: StubBoxes
) -> None:
    api.fault("ssh_refused")
    api.fault("box_cut_off")
    number = renter.rent()
    assert renter.row(number).state is InstanceState.RUNNING
    assert renter.end(number) == FREE
    assert boxes.made[0].done[-1] == "destroy"


def test_restarts_end_no_bill_and_stop_no_end(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("container_restart")
    api.fault("host_reboot")
    assert renter.row(number).usd_per_hour == USD
    assert renter.costs(3600) == USD
    assert renter.end(number) == FREE


def test_a_price_above_the_offer_is_refused_on_its_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("price_up", factor=1.25)
    with pytest.raises(CreateFailedButMade, match=r"it costs \$10.95/h") as made:
        renter.prime.create(order)
    assert renter.end(made.value.instance_id) == FREE


def test_a_spot_pod_that_was_outbid_bills_until_it_is_ended(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("outbid")
    row = renter.row(number)
    assert (row.state, row.usd_per_hour) == (InstanceState.STOPPED, USD)
    api.fault("resume_after_s", seconds=60)
    assert renter.costs(60) == round(USD / 60, 2)
    assert renter.row(number).state is not InstanceState.STOPPED
    assert renter.end(number) == FREE


def test_words_that_nobody_knows_are_unknown_and_bill(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("status_word", word="HIBERNATED")
    row = renter.row(number)
    assert (row.state, row.usd_per_hour) == (InstanceState.UNKNOWN, USD)
    assert renter.end(number) == FREE


def test_a_pod_with_another_name_is_ended_by_its_id(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("relabel")
    assert renter.labels() == ["renamed"]
    assert renter.end(number) == FREE


def test_a_pod_ended_in_the_console_is_gone(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("console_destroy")
    assert renter.prime.instance(number) is None
    assert renter.end(number) == FREE


def test_two_pods_of_one_name_are_two_rows(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("twin_label", seconds_before=600)
    rows = renter.prime.instances()
    assert [row.label for row in rows] == [LABEL, LABEL]
    renter.prime.destroy(number)
    renter.wait(1)
    assert number not in renter.alive()
    assert len(renter.prime.instances()) == 1, "the other is somebody else's"


# The end.


def test_a_delete_that_does_nothing_is_asked_again(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("delete_lies", times=2)
    assert renter.end(number) == Decimal("0.10")


def test_a_404_to_a_delete_counts_when_nothing_shows_the_pod(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("delete_404", times=1)
    assert renter.end(number) == FREE


def test_a_404_to_a_delete_of_what_is_listed_is_no_end(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("server_error", endpoint="destroy", status=404, body="json")
    with pytest.raises(ProviderError, match="shows it all the same"):
        renter.prime.destroy(number)
    assert renter.alive() == {number}


def test_deleting_for_an_hour_is_still_billing(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("deleting_s", seconds=3600)
    renter.prime.destroy(number)
    assert renter.row(number).state is InstanceState.ENDING
    assert renter.row(number).usd_per_hour == USD
    assert renter.end(number) == USD


def test_a_terminated_pod_that_lingers_is_gone(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("terminated_listed_s", seconds=600)
    assert renter.end(number, within_s=120) == FREE


def test_the_tail_after_a_delete_is_less_than_what_is_reserved(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("tail_s", seconds=318)
    renter.end(number)
    renter.wait(3600)
    reserved = USD * int(renter.prime.traits.tail_s) / 3600
    assert renter.prime.billed_usd(number) <= reserved + CENT


def test_the_bill_comes_from_the_history_when_it_is_there(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    renter.wait(3600)
    api.fault("history_lag_s", seconds=150)
    renter.end(number)
    assert renter.prime.billed_usd(number) is None
    renter.wait(150)
    billed = renter.prime.billed_usd(number)
    assert billed is not None
    assert round(billed, 6) == round(api.meter().billed_usd, 6)


def test_an_id_given_to_another_pod_is_another_row(
    api: Cloud, renter: Renter, prime: Prime
) -> None:
    number = renter.rent()
    renter.end(number)
    api.fault("id_reuse", label="theirs")
    assert renter.row(number).label == "theirs"
    assert renter.labels() == ["theirs"]
