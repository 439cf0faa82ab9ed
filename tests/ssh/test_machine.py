"""A box is frozen, rebooted or full while a run is on it."""

import time
from collections.abc import Callable

from tests.boxes import box
from tests.homes import WAITS
from tests.hosts import Hosts, left_on, run_root
from tests.ssh import table
from tests.ssh.conftest import Keep


def test_a_box_that_is_frozen_for_a_while_goes_on(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    train = "mkdir -p out; for i in 1 2 3 4 5 6; do echo step $i; sleep 0.5; done\n"
    train += "echo 42 > out/result.txt"
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=train))
        home.until_phase(run, "train")
        machine.freeze()
        time.sleep(6)
        machine.thaw()
        ended = home.finished(run)
        keep(table.of_run("root container", "frozen 6 s in train", ended))
        assert ended["state"] == "done", ended["error"] + home.logs()
        assert home.fetched(run, "logs/train.log").split() == [
            word for i in range(1, 7) for word in ("step", str(i))
        ]
        assert left_on(machine) == []


def test_a_box_that_is_restarted_in_its_setup_is_said_and_cleaned(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(build="touch building; sleep 600"))
        home.until(lambda: (run_root(machine) / "building").exists())
        machine.reboot()
        ended = home.finished(run)
        keep(table.of_run("root container", "reboot in data", ended))
        assert (ended["state"], ended["exit_code"]) == ("failed", 5)
        assert "the box was restarted under it" in ended["error"], ended["error"]
        assert left_on(machine) == []


def test_a_box_that_is_restarted_in_training_keeps_what_was_saved(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=f"echo begins; {WAITS}"))
        home.until(lambda: (run_root(machine) / "out/result.txt").exists())
        machine.reboot()
        ended = home.finished(run)
        keep(table.of_run("root container", "reboot in train", ended))
        assert (ended["state"], ended["exit_code"]) == ("failed", 5)
        assert "the box was rebooted while training" in ended["error"], ended["error"]
        assert home.fetched(run, "out/result.txt") == "42\n"
        assert left_on(machine) == []


def test_a_disk_that_fills_up_ends_the_run_with_the_reason(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    train = "mkdir -p out; echo 42 > out/result.txt; touch full-me\n"
    train += "until [ -e full ]; do sleep 0.1; done\n"
    train += "head -c 9000000 /dev/zero > out/model.pt"
    with box() as machine:
        home = hosts_of(machine)
        run = home.begin(home.recipe(train=train))
        home.until(lambda: (run_root(machine) / "full-me").exists())
        (run_root(machine) / "full").touch()
        machine.fill_disk()
        ended = home.finished(run)
        keep(table.of_run("root container", "disk full in train", ended))
        assert (ended["state"], ended["exit_code"]) == ("failed", 5)
        assert "disk" in ended["error"], ended["error"]
        assert home.fetched(run, "out/result.txt") == "42\n"
        machine.free_disk()
        assert left_on(machine) == []
