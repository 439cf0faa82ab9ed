"""Every knob of the emulated Vast.ai does what its sentence says: how instances live and end."""

from decimal import Decimal

import httpx
import pytest

from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.renter import (
    DISK_USD,
    GPU_USD,
    RUNNING_USD,
    START,
    STOPPED_USD,
    Renter,
    per_hour,
    spent,
)
from tests.clouds.world import BOOT_S

# The life of an instance.


def test_a_long_boot_and_one_without_end_bill_the_disk_alone(vast: Cloud, renter: Renter) -> None:
    vast.fault("boot_s", seconds=900)
    number = renter.create().json()["new_contract"]
    assert spent(vast, 899) == per_hour(DISK_USD * 899 / 3600)
    assert renter.show(number)["actual_status"] == "loading"
    vast.advance(1)
    assert renter.show(number)["actual_status"] == "running"
    vast.clear()
    for status, shown in (("null", None), ("loading", "loading")):
        vast.fault("stuck", status=status)
        number = renter.create().json()["new_contract"]
        vast.advance(1800)
        assert renter.show(number)["actual_status"] == shown


def test_a_container_that_does_not_start(vast: Cloud, renter: Renter) -> None:
    vast.fault("start_fails")
    row = renter.show(renter.rent())
    assert (row["actual_status"], row["cur_state"]) == ("created", "stopped")
    assert "OCI runtime create failed" in row["status_msg"]
    assert spent(vast, 3600) == per_hour(STOPPED_USD)


def test_a_machine_with_other_gpus(vast: Cloud, renter: Renter, boxes: StubBoxes) -> None:
    vast.fault("wrong_gpu")
    number = renter.rent()
    assert (boxes.made[-1].spec.gpu_count, renter.show(number)["num_gpus"]) == (3, 4)
    vast.fault("wrong_gpu", gpu="A100_80GB", where="both", count=4)
    number = renter.rent()
    assert (boxes.made[-1].spec.gpu, boxes.made[-1].spec.gpu_count) == ("A100_80GB", 4)
    assert renter.show(number)["gpu_name"] == "A100_80GB"


def test_ways_in_that_refuse(vast: Cloud, renter: Renter, boxes: StubBoxes) -> None:
    vast.fault("ssh_refused", path="both")
    renter.rent()
    assert boxes.made[-1].done == ["refuse ssh"]
    vast.fault("ssh_refused", path="proxy")
    renter.rent()
    assert boxes.made[-1].done == ["refuse proxy"]
    vast.fault("ssh_refused", path="direct")
    row = renter.show(renter.rent())
    assert row["ports"]["22/tcp"][0]["HostPort"] == "9"


def test_a_box_with_tmux_one_cut_off_and_one_whose_key_is_dead(
    vast: Cloud, renter: Renter, boxes: StubBoxes
) -> None:
    vast.fault("auto_tmux")
    vast.fault("box_cut_off")
    made = renter.create().json()
    vast.advance(BOOT_S)
    assert boxes.made[0].spec.auto_tmux
    assert boxes.made[0].done == ["cut off"]
    vast.fault("container_key_dead")
    box = Renter(vast, api_key=made["instance_api_key"])
    assert box.destroy(made["new_contract"]).status_code == 401
    assert vast.meter().alive == 1


def test_an_address_with_white_space(vast: Cloud, renter: Renter) -> None:
    vast.fault("ip_with_spaces")
    assert renter.show(renter.rent())["public_ipaddr"] == " 192.0.2.1 \n"


def test_a_price_that_rises_at_once_or_later(vast: Cloud, renter: Renter) -> None:
    vast.fault("price_up", factor=1.5, after_s=600)
    number = renter.rent()
    vast.advance(600 - BOOT_S)
    assert spent(vast, 3600) == per_hour(GPU_USD * 3 / 2 + DISK_USD)
    vast.fault("price_up", factor=2)
    assert renter.show(number)["dph_base"] == float(2 * GPU_USD)
    offer = renter.search()[0]
    second = renter.create(offer["id"]).json()["new_contract"]
    assert renter.show(second)["dph_base"] == 2 * offer["dph_base"], "from the first row on"


def test_a_disk_that_alone_gets_dearer(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    before = renter.show(number)
    vast.fault("disk_price_up", factor=3)
    after = renter.show(number)
    assert after["dph_base"] == before["dph_base"]
    assert Decimal(str(after["storage_total_cost"])) == pytest.approx(3 * DISK_USD)
    assert spent(vast, 3600) == per_hour(GPU_USD + 3 * DISK_USD)


def test_traffic_is_billed_once(vast: Cloud, renter: Renter) -> None:
    renter.rent()
    before = vast.meter().billed_usd
    vast.fault("traffic", up_gb=1, down_gb=10)
    assert vast.meter().billed_usd - before == Decimal("0.0026") + 10 * Decimal("0.0013")


def test_restarts_reboots_and_a_recycle(vast: Cloud, renter: Renter, boxes: StubBoxes) -> None:
    number = renter.rent()
    vast.fault("container_restart")
    vast.fault("host_reboot", after_s=60)
    vast.advance(60)
    assert boxes.made[0].done == ["restart", "reboot"]
    assert len(boxes.made[0].starts) == 3, "the onstart runs at each start"
    vast.fault("recycle", instance=number)
    assert renter.show(number)["actual_status"] is None
    vast.advance(BOOT_S)
    assert renter.show(number)["actual_status"] == "running"
    assert (boxes.made[0].done[-1], len(boxes.made)) == ("destroy", 2)


def test_an_outbid_instance_stops_and_comes_back_by_itself(
    vast: Cloud, renter: Renter, boxes: StubBoxes
) -> None:
    vast.fault("resume_after_s", seconds=21600)
    vast.fault("outbid", after_s=300)
    number = renter.rent()
    vast.advance(300)
    row = renter.show(number)
    states = (row["cur_state"], row["intended_status"], row["next_state"], row["actual_status"])
    assert states == ("stopped", "stopped", "stopped", "exited")
    assert spent(vast, 21600) == per_hour(6 * STOPPED_USD)
    assert renter.show(number)["actual_status"] == "running"
    assert boxes.made[0].done == ["halt", "boot"]
    assert spent(vast, 3600) == per_hour(RUNNING_USD), "outbid once, not again"


def test_a_start_that_is_queued_bills_when_nobody_looks(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    renter.put(number, state="stopped")
    vast.fault("start_queued", starts_after_s=3600)
    answer = renter.put(number, state="running").json()
    assert answer["success"] is False
    assert answer["msg"].endswith("state change queued.")
    assert spent(vast, 3600) == per_hour(STOPPED_USD)
    assert spent(vast, 3600) == per_hour(RUNNING_USD)
    renter.put(number, state="stopped")
    renter.put(number, state="running")
    renter.put(number, state="stopped")
    assert spent(vast, 7200) == per_hour(2 * STOPPED_USD), "a stop cancels it"


def test_words_for_a_status_and_what_they_cost(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    for word, usd in (
        ("offline", Decimal(0)),
        ("unknown", RUNNING_USD),
        ("frozen", RUNNING_USD),
        ("hibernating", RUNNING_USD),
    ):
        vast.fault("status_word", word=word)
        assert renter.show(number)["actual_status"] == word
        assert spent(vast, 3600) == per_hour(usd)
    vast.clear("status_word")
    assert renter.show(number)["actual_status"] == "running"


def test_what_happens_in_the_console(vast: Cloud, renter: Renter) -> None:
    number = renter.rent(label="a")
    vast.fault("relabel", label="b", instance=number)
    assert renter.show(number)["label"] == "b"
    vast.fault("console_destroy", after_s=60)
    vast.advance(59)
    assert renter.listed() == [number]
    vast.advance(1)
    assert renter.listed() == []


def test_somebody_elses_box_with_our_label_or_our_id(vast: Cloud, renter: Renter) -> None:
    vast.fault("twin_label", seconds_before=90)
    number = renter.rent(label="a")
    rows = renter.page()["instances"]
    assert [row["label"] for row in rows] == ["a", "a"]
    assert rows[0]["id"] == number
    assert rows[0]["start_date"] - rows[1]["start_date"] == 90
    vast.fault("id_reuse", label="theirs", after_s=60)
    renter.destroy(number)
    assert renter.show(number) is None
    vast.advance(60)
    assert renter.show(number)["label"] == "theirs"
    assert vast.meter().alive == 2


# The end.


def test_a_delete_that_lies(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("delete_lies")
    assert renter.destroy(number).json() == {"success": True}
    assert renter.listed() == [number]
    assert spent(vast, 3600) == per_hour(RUNNING_USD)


def test_a_tail_after_the_delete(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("tail_s", seconds=318)
    renter.destroy(number)
    assert vast.meter().alive == 0
    assert spent(vast, 3600) == per_hour(RUNNING_USD * 318 / 3600)


def test_a_schedule_that_is_refused_or_whose_answer_is_lost(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("schedule_refused", status=403, times=1)
    assert renter.hour(number, START.timestamp()).status_code == 403
    vast.fault("schedule_answer_lost", when="before")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.hour(number, START.timestamp())
    assert renter.http.get("/commands/schedule_job/").json() == []
    vast.fault("schedule_answer_lost", when="after")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.hour(number, START.timestamp())
    [job] = renter.http.get("/commands/schedule_job/").json()
    assert job["api_endpoint"] == f"/api/v0/instances/{number}/"
