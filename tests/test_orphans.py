"""`orphans`: all that two emulated accounts hold beside our runs in dollars, and its proven end."""

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from gpurun import engine
from gpurun import settings as configuration
from gpurun.errors import StillBilling, UsageError
from gpurun.holdings import Whose
from tests.accounts import Accounts, accounts_of
from tests.clouds.serve import Cloud
from tests.homes import Home

OTHERS = "gpurun-zzzzzz-aaaaaaaa-bbbbbb"  # a label of another owner's
DEAD_HOST = '[{"host": "127.0.0.1", "port": 1}]'


@pytest.fixture
def accounts(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    with accounts_of(home, monkeypatch) as found:
        yield found


# What is shown.


def test_everything_that_bills_is_shown_at_what_the_meter_takes(accounts: Accounts) -> None:
    """Running, stopped, of others, without a name, and a disk: an hour costs what is said."""
    running = accounts.rent(accounts.vast, OTHERS)
    stopped = accounts.rent(accounts.vast, "")
    accounts.vast.fault("outbid", instance=stopped)
    pod = accounts.rent(accounts.prime, "mine")
    disk = accounts.disk()
    found = {each["instance_id"]: each for each in accounts.shown()["orphans"]}
    words = {
        name: (each["provider"], each["kind"], each["state"], each["whose"], each["owner_id"])
        for name, each in found.items()
    }
    assert words == {
        running: ("vast", "box", "running", "other_owner", "zzzzzz"),
        stopped: ("vast", "box", "stopped", "foreign", None),
        pod: ("prime", "box", "running", "foreign", None),
        disk: ("prime", "disk", "stopped", "foreign", None),
    }
    for at, ids in ((accounts.vast, (running, stopped)), (accounts.prime, (pod, disk))):
        before = at.meter().billed_usd
        at.advance(3600)
        billed = at.meter().billed_usd - before
        said = sum((Decimal(found[name]["usd_per_hour"]) for name in ids), Decimal(0))
        assert billed <= said < billed + Decimal("0.0001")


def test_it_is_printed_as_a_table_with_its_sum(accounts: Accounts) -> None:
    accounts.rent(accounts.vast, "evil\x1b]0;name")
    accounts.disk()
    done = accounts.home.run("orphans")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    head, box, disk, total = done.stdout.splitlines()
    assert head.split() == ["PROVIDER", "ID", "LABEL", "STATE", "$/H", "WHOSE"]
    assert "evil?]0;name" in done.stdout
    assert "stopped disk" in box + disk
    assert total.startswith("2 things under no timer of gpurun here: $7.6")


def test_what_a_timer_covers_is_no_orphan_whatever_its_label_is_now(accounts: Accounts) -> None:
    _, made = accounts.run_of(accounts.vast)
    assert accounts.whose() == {}
    accounts.relabel(accounts.vast, made, "renamed")
    assert accounts.whose() == {}


def test_a_twin_of_ours_is_told_from_it(accounts: Accounts) -> None:
    """Made later it may be from a request that was repeated; made before, it is somebody's."""
    _, made = accounts.run_of(accounts.vast)
    accounts.vast.fault("twin_label", instance=made)
    accounts.vast.fault("twin_label", instance=made, seconds_before=7200)
    assert sorted(accounts.whose().values()) == [Whose.FOREIGN, Whose.PROBABLY_OURS]
    assert made not in accounts.whose()


def test_an_id_that_was_given_to_another_box_is_not_ours(accounts: Accounts) -> None:
    _, made = accounts.run_of(accounts.vast)
    accounts.vast.advance(600)
    accounts.vast.fault("console_destroy", instance=made)
    accounts.vast.fault("id_reuse", instance=made)
    assert accounts.whose() == {made: Whose.FOREIGN}


def test_a_box_without_a_label_may_be_from_a_purchase_without_an_answer(
    accounts: Accounts,
) -> None:
    before = accounts.rent(accounts.vast, "")
    accounts.vast.advance(600)
    accounts.clock.advance(600)
    _, made = accounts.run_of(accounts.vast, answered=False)
    assert accounts.whose() == {before: Whose.FOREIGN}, "its label is found by its driver"
    accounts.relabel(accounts.vast, made, "")
    assert accounts.whose() == {before: Whose.FOREIGN, made: Whose.PROBABLY_OURS}


def test_a_label_of_ours_that_is_over_is_ours(accounts: Accounts) -> None:
    story, made = accounts.run_of(accounts.vast)
    story.gone()
    assert accounts.whose() == {made: Whose.OURS}


def test_without_a_readable_journal_the_black_box_tells_what_is_ours(accounts: Accounts) -> None:
    story, _ = accounts.run_of(accounts.vast)
    accounts.trace(story)
    story.journal.close()
    lost = accounts.rent(accounts.vast, "gpurun-owner1-aaaaaaaa-bbbbbb")
    accounts.spoil_journal()
    found = accounts.survey()
    assert [trouble.provider for trouble in found.troubles] == ["journal"]
    assert {(each.row.id, each.whose) for each in found.orphans} == {(lost, Whose.OURS)}


# Those who do not answer.


def test_neither_a_dead_cloud_nor_a_dead_host_hides_the_others(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    accounts.prime.fault("key_revoked")
    accounts.home.env["GPURUN_SSH_HOSTS"] = DEAD_HOST
    found = accounts.shown(code=4)
    assert [each["instance_id"] for each in found["orphans"]] == [made]
    whys = {each["provider"]: each["why"] for each in found["troubles"]}
    assert whys.keys() == {"prime", "ssh:root@127.0.0.1:1"}
    assert "run `gpurun auth prime`" in whys["prime"]
    done = accounts.home.run("orphans")
    assert done.returncode == 4
    assert made in done.stdout
    assert "gpurun: not all of prime is shown: " in done.stderr
    status = accounts.home.run("status", "--refresh", "--json")
    assert status.returncode == 4
    document = json.loads(status.stdout)
    assert [each["instance_id"] for each in document["orphans"]] == [made]
    assert {each["provider"] for each in document["troubles"]} == whys.keys()


def test_a_cloud_that_hangs_costs_its_share_of_time_alone(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    accounts.prime.fault("down", how="hang")
    began_s = time.monotonic()
    found = accounts.survey("vast", "prime", within_s=1.5)
    assert time.monotonic() - began_s < 1.5 + 2
    assert [each.row.id for each in found.orphans] == [made]
    assert [str(each.why) for each in found.troubles] == ["prime did not answer in 2 s"]
    accounts.prime.clear()


def test_a_list_that_does_not_add_up_is_no_list(accounts: Accounts) -> None:
    accounts.rent(accounts.vast, "mine")
    pod = accounts.rent(accounts.prime, "mine too")
    accounts.vast.fault("total_wrong")
    found = accounts.survey()
    assert [each.row.id for each in found.orphans] == [pod]
    assert [each.provider for each in found.troubles] == ["vast"]


def test_a_key_that_may_not_see_disks_shows_pods_and_says_so(accounts: Accounts) -> None:
    pod = accounts.rent(accounts.prime, "mine")
    accounts.disk()
    accounts.prime.fault("key_scopes", scopes="user:read, instances:read")
    found = accounts.shown("--provider", "prime", code=4)
    assert [each["instance_id"] for each in found["orphans"]] == [pod]
    [trouble] = found["troubles"]
    assert "disks that bill without a box are not shown" in trouble["why"]


def test_a_cloud_without_a_key_is_asked_only_by_name(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    accounts.home.config.write_text(f'[keys]\nvast = "{accounts.vast.api_key}"\n')
    assert [each["instance_id"] for each in accounts.shown()["orphans"]] == [made]
    assert accounts.shown("--provider", "any") == accounts.shown()
    for name, why in (("prime", "there is no key for prime"), ("vats", "did you mean vast?")):
        named = accounts.shown("--provider", name, code=2)
        assert why in named["error"]["message"]


# The end.


def test_only_what_is_named_is_ended_and_is_proven_gone(accounts: Accounts) -> None:
    """A box and a disk, by two commands at once; each takes the 20 s between two lists."""
    twins = [accounts.rent(accounts.vast, OTHERS) for _ in range(2)]
    pod, disk = accounts.rent(accounts.prime, "mine"), accounts.disk()
    ending = [
        accounts.home.start("orphans", "--kill", instance_id, "--yes", "--json")
        for instance_id in (twins[0], disk)
    ]
    for process, instance_id in zip(ending, (twins[0], disk), strict=True):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        document = json.loads(out)
        assert document["ended"] is True
        assert [each["instance_id"] for each in document["orphans"]] == [instance_id]
    assert accounts.alive(accounts.vast) == {twins[1]}, "the same label, another id"
    assert accounts.alive(accounts.prime) == {pod}
    before = accounts.vast.meter().billed_usd + accounts.prime.meter().billed_usd
    rate = sum(each.row.usd_per_hour or 0 for each in accounts.survey().orphans)
    accounts.vast.advance(3600)
    accounts.prime.advance(3600)
    billed = accounts.vast.meter().billed_usd + accounts.prime.meter().billed_usd - before
    assert billed <= rate < billed + Decimal("0.0001"), "$0.00 for what was ended"


def test_without_a_yes_nothing_is_ended(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    done = accounts.home.run("orphans", "--kill", made)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert accounts.alive(accounts.vast) == {made}


def test_what_is_no_orphan_is_not_ended(accounts: Accounts) -> None:
    _, made = accounts.run_of(accounts.vast)
    for instance_id in (made, "4711"):
        done = accounts.home.run("orphans", "--kill", instance_id, "--yes")
        assert done.returncode == 2
        assert "`gpurun kill RUN`" in done.stderr
    accounts.prime.fault("key_revoked")
    done = accounts.home.run("orphans", "--kill", "4711", "--yes")
    assert done.returncode == 4
    assert "not everybody could be asked" in done.stderr
    assert accounts.alive(accounts.vast) == {made}


@pytest.mark.parametrize("at", ["vast", "prime"])
@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("delete_lies", {}),
        ("down", {}),
        ("html", {}),
        ("key_revoked", {}),
        ("list_page_fails", {"page": 1}),
        ("list_empty", {}),
    ],
)
def test_what_is_not_proven_gone_still_bills(
    accounts: Accounts, at: str, fault: str, values: dict[str, Any]
) -> None:
    where: Cloud = getattr(accounts, at)
    made = accounts.rent(where, "mine")
    orphan = accounts.only()
    where.fault("delete_lies")
    began_s = accounts.clock.boot_s()

    def meanwhile(_line: str) -> None:
        where.fault(fault, **values)

    with pytest.raises(StillBilling, match=f"{made} may still bill .*orphans --kill {made}"):
        engine.end_orphan(orphan, configuration.load(), accounts.clock, meanwhile)
    assert 50 < accounts.clock.boot_s() - began_s < 150
    assert accounts.alive(where) == {made}


def test_a_row_that_comes_and_goes_is_not_gone(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    orphan = accounts.only()
    accounts.vast.fault("flicker", instance=made)
    accounts.vast.fault("delete_lies")
    accounts.adapter(accounts.vast).instances()  # the next list shows it
    with pytest.raises(StillBilling):
        accounts.end(orphan)
    assert accounts.alive(accounts.vast) == {made}


def test_an_end_that_takes_several_requests_is_told_and_proven(accounts: Accounts) -> None:
    made = accounts.rent(accounts.prime, "mine")
    orphan = accounts.only()
    accounts.prime.fault("delete_lies", times=2)
    assert accounts.end(orphan) != []
    assert accounts.alive(accounts.prime) == set()
    assert made not in accounts.whose()


def test_what_has_changed_since_it_was_shown_is_left_alone(accounts: Accounts) -> None:
    made = accounts.rent(accounts.vast, "mine")
    orphan = accounts.only()
    accounts.relabel(accounts.vast, made, "another's")
    with pytest.raises(UsageError, match="nothing was done"):
        accounts.end(orphan)
    accounts.relabel(accounts.vast, made, "mine")
    accounts.vast.fault("key_of_other_account")
    with pytest.raises(UsageError, match="nothing was done"):
        accounts.end(orphan)
    accounts.vast.clear()
    assert accounts.alive(accounts.vast) == {made}


def test_a_key_of_another_account_proves_nothing(accounts: Accounts) -> None:
    """Swapped in the middle: the other account lists nothing, and that is no death."""
    made = accounts.rent(accounts.vast, "mine")
    orphan = accounts.only()
    accounts.vast.fault("delete_lies")

    def swap(_line: str) -> None:
        accounts.vast.fault("key_of_other_account")

    with pytest.raises(StillBilling, match="another account"):
        engine.end_orphan(orphan, configuration.load(), accounts.clock, swap)
    assert accounts.alive(accounts.vast) == {made}
