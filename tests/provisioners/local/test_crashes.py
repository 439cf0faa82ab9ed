"""Creators and destroyers of local boxes that die, or meet."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import (
    CreateFailedButMade,
    CreateUnclear,
    GpurunError,
)
from gpurun.model import InstanceState
from provisioners.local import Local, processes, strategies
from tests.contract import LABEL, order
from tests.provisioners.local.boxes import (
    CLOCK,
    NAP,
    RATE,
    outer_pids,
    rent,
    wait_for,
)

STUCK = """
import sys, time
from decimal import Decimal
from pathlib import Path
from gpurun.clock import SystemClock
from provisioners.local import Local
from tests.contract import order

class Stuck(SystemClock):
    def now(self):  # asked when the init waits and box.json is not yet written
        print("stuck", flush=True)
        time.sleep(600)

cloud = Local(Path(sys.argv[1]), Decimal(1), Stuck(), [sys.argv[2]])
cloud.create(order(cloud, sys.argv[3]))
"""


@pytest.fixture
def stuck_creator(cloud: Local, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    creator = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path), *cloud._strategies, LABEL],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert creator.stdout is not None
    assert creator.stdout.readline() == "stuck\n"
    yield creator
    creator.kill()
    creator.wait()
    creator.stdout.close()


def test_a_creator_killed_before_the_record_leaves_a_row_and_no_process(
    cloud: Local, stuck_creator: subprocess.Popen[str]
) -> None:
    assert processes.marked(strategies.MARK, LABEL)
    assert [row.state for row in cloud.instances()] == [InstanceState.STARTING]
    stuck_creator.kill()
    wait_for(lambda: not processes.marked(strategies.MARK, LABEL))
    assert [row.state for row in cloud.instances()] == [InstanceState.STARTING]
    with pytest.raises(CreateFailedButMade):
        cloud.create(order(cloud))
    cloud.destroy(LABEL)
    assert cloud.instances() == []


def test_a_box_can_be_destroyed_while_it_is_being_made(
    cloud: Local, stuck_creator: subprocess.Popen[str]
) -> None:
    cloud.destroy(LABEL)
    assert cloud.instances() == []
    assert not processes.marked(strategies.MARK, LABEL)


def test_a_creator_killed_before_the_directory_leaves_nothing_but_a_used_label(
    any_cloud: Local, tmp_path: Path
) -> None:
    (tmp_path / "boxes" / ".used").mkdir(parents=True)
    (tmp_path / "boxes" / ".used" / LABEL).touch()
    assert any_cloud.instances() == []
    with pytest.raises(CreateUnclear):
        any_cloud.create(order(any_cloud))
    assert any_cloud.instances() == []


def test_of_many_creators_of_one_label_one_makes_a_box(cloud: Local, tmp_path: Path) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def create() -> None:
        mine = Local(tmp_path, RATE, CLOCK, cloud._strategies)
        wanted = order(mine)
        start.wait()
        try:
            mine.create(wanted)
            outcomes.append("made")
        except (CreateFailedButMade, CreateUnclear):
            outcomes.append("refused")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7
    assert [row.state for row in cloud.instances()] == [InstanceState.RUNNING]


def test_create_against_destroy_leaves_all_or_nothing(cloud: Local, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    for number in range(12):
        wanted = order(cloud, f"{LABEL}{number}")
        ended = threading.Event()

        def destroy(label: str = wanted.label, ended: threading.Event = ended) -> None:
            try:
                while not ended.is_set():
                    cloud.destroy(label)
            except BaseException as error:
                failures.append(error)

        destroyer = threading.Thread(target=destroy)
        destroyer.start()
        try:
            cloud.create(wanted)
        except GpurunError:
            pass
        finally:
            ended.set()
            destroyer.join()
        cloud.destroy(wanted.label)
        wait_for(lambda label=wanted.label: not processes.marked(strategies.MARK, label))
    assert failures == []
    assert cloud.instances() == []


def test_two_destroyers_do_not_trip_over_each_other(any_cloud: Local, tmp_path: Path) -> None:
    shell = rent(any_cloud)
    shell.run(
        "mkdir keep; for i in $(seq 300); do echo $i > keep/$i; done;"
        " echo keep > .gpurun/collect.txt",
        timeout_s=30,
    )
    failures: list[BaseException] = []

    def destroy() -> None:
        try:
            any_cloud.destroy(LABEL)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=destroy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert any_cloud.instances() == []
    saved = {
        path.name: path.read_text().strip() for path in any_cloud.salvage(LABEL).rglob("[0-9]*")
    }
    assert saved == {str(number): str(number) for number in range(1, 301)}


def test_a_command_that_begins_while_its_box_is_destroyed_does_not_survive_it(
    cloud: Local, tmp_path: Path
) -> None:
    for number in range(8):
        label = f"{LABEL}{number}"
        shell = rent(cloud, label)
        codes: list[int] = []
        commanding = threading.Thread(
            target=lambda shell=shell, codes=codes: codes.append(
                shell.run(f"exec {NAP}", timeout_s=60).exited
            )
        )
        commanding.start()
        cloud.destroy(label)
        commanding.join(30)
        assert codes == [-1]
        wait_for(lambda: not outer_pids(NAP))
