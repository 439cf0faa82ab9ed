"""The black box: whatever happens to the file, no wrong entry, and no live one lost."""

import multiprocessing
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun.blackbox import KILLING, BlackBox, Entry, killed_labels, read_entries

NOW = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)

entries = st.builds(
    Entry,
    seq=st.integers(min_value=0, max_value=10**9),
    label=st.sampled_from(["gpurun-a-b-c", "gpurun-a-b-d", "x y", "-", "", "ü%20\n"]),
    provider=st.sampled_from(["vast", "local"]),
    account=st.text(max_size=8),
    instance_id=st.none() | st.text(max_size=8),
    usd_per_hour=st.decimals(min_value=0, max_value=1000, allow_nan=False, places=4),
    fires_at=st.datetimes(min_value=datetime(2020, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    ends_at=st.just(NOW),
    ceiling_at=st.just(NOW),
    state=st.sampled_from(["intent", "sending", "made", "deleting", "gone"]),
)


def entry(seq: int = 1, label: str = "gpurun-a-b-c", state: str = "made") -> Entry:
    return Entry(
        seq=seq,
        label=label,
        provider="vast",
        account="u 7",
        instance_id="812",
        usd_per_hour=Decimal("7.560"),
        fires_at=NOW,
        ends_at=NOW + timedelta(minutes=5),
        ceiling_at=NOW + timedelta(hours=1),
        state=state,
    )


@cache
def content_of(*written: Entry) -> bytes:
    with a_box() as box:
        for each in written:
            box.append(each)
        return box.path.read_bytes()


@contextmanager
def a_box() -> Iterator[BlackBox]:
    with tempfile.TemporaryDirectory() as directory:
        yield BlackBox(Path(directory) / "timers.log", "ow1234", "machine hash")


@pytest.fixture
def box(tmp_path: Path) -> BlackBox:
    return BlackBox(tmp_path / "timers.log", "ow1234", "machine hash")


@given(st.lists(entries, max_size=6))
def test_what_was_appended_is_read_with_the_highest_seq_and_then_the_later_line(
    written: list[Entry],
) -> None:
    wanted: dict[str, Entry] = {}
    with a_box() as box:
        for each in written:
            box.append(each)
            if each.label not in wanted or each.seq >= wanted[each.label].seq:
                wanted[each.label] = each
        assert box.read() == read_entries(box.path) == wanted


def test_a_missing_file_arms_nothing(box: BlackBox) -> None:
    assert box.read() == {}
    assert box.header() is None


def test_the_file_says_whose_it_is_and_only_its_owner_may_read_it(box: BlackBox) -> None:
    box.append(entry())
    copied = BlackBox(box.path, "other", "another machine")
    copied.append(entry(2))
    assert copied.header() == ("ow1234", "machine hash")
    assert stat.S_IMODE(box.path.stat().st_mode) == 0o600
    assert len(box.path.read_text().splitlines()) == 3


def test_a_line_is_words_that_a_human_can_read(box: BlackBox) -> None:
    box.append(replace(entry(), instance_id=None))
    line = box.path.read_text().splitlines()[1]
    assert line.startswith(
        "1 gpurun-a-b-c vast u%207 - 7.560 2026-11-21T11:00:00.000000+00:00 "
        "2026-11-21T11:05:00.000000+00:00 2026-11-21T12:00:00.000000+00:00 made "
    )


def test_a_time_of_another_zone_is_written_in_utc(box: BlackBox) -> None:
    box.append(replace(entry(), fires_at=NOW.astimezone(timezone(timedelta(hours=9)))))
    assert box.read()["gpurun-a-b-c"].fires_at == NOW
    assert "+09:00" not in box.path.read_text()


@settings(max_examples=200)
@given(st.data())
def test_a_file_cut_anywhere_loses_at_most_the_last_line(data: st.DataObject) -> None:
    whole = content_of(entry(1), entry(2), entry(3))
    with a_box() as box:
        cut = data.draw(st.integers(0, len(whole)))
        box.path.write_bytes(whole[:cut])
        complete = max(0, whole[:cut].count(b"\n") - 1)
        found = box.read()
        seqs = [each.seq for each in found.values()]
        # A line that only lacks its newline is whole, and may count.
        assert (seqs or [0])[0] in (complete, complete + 1)
        box.append(entry(4, label="gpurun-a-b-new"))
        assert box.read() == found | {"gpurun-a-b-new": entry(4, label="gpurun-a-b-new")}
        assert box.header() == ("ow1234", "machine hash")


@settings(max_examples=300)
@given(st.data())
def test_a_changed_byte_never_makes_a_wrong_entry(data: st.DataObject) -> None:
    written = (entry(1), entry(2), entry(3, label="gpurun-a-b-d", state="gone"), entry(4))
    content = bytearray(content_of(*written))
    with a_box() as box:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        box.path.write_bytes(content)
        assert all(each in written for each in box.read().values())
        assert box.header() in (None, ("ow1234", "machine hash"))


@given(st.binary(max_size=200))
def test_garbage_before_and_after_hides_nothing(garbage: bytes) -> None:
    with a_box() as box:
        box.append(entry())
        box.path.write_bytes(garbage + b"\n" + box.path.read_bytes() + garbage)
        assert box.read() == {"gpurun-a-b-c": entry()}


def test_appending_processes_and_a_compacting_one_lose_no_line(box: BlackBox) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_append_many, args=(box.path, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        box.compact(lambda each: not each.settled)
        workers[0].join(0.01)  # a lock that is never left alone is nobody else's
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    labels = {f"gpurun-{n}-{i}" for n in range(4) for i in range(25)}
    assert {label: each.seq for label, each in box.read().items()} == dict.fromkeys(labels, 2)


def _append_many(path: Path, worker: int) -> None:
    box = BlackBox(path, "ow1234", "machine hash")
    for i in range(25):
        box.append(entry(1, label=f"gpurun-{worker}-{i}"))
        box.append(entry(2, label=f"gpurun-{worker}-{i}"))


def test_compacting_keeps_the_header_and_the_live(box: BlackBox) -> None:
    box.append(entry(1))
    for state in ("made", "gone"):
        box.append(entry(1, label="gpurun-a-b-d", state=state))
    BlackBox(box.path, "other", "another machine").compact(lambda each: not each.settled)
    assert box.read() == {"gpurun-a-b-c": entry(1)}
    assert box.header() == ("ow1234", "machine hash")
    assert stat.S_IMODE(box.path.stat().st_mode) == 0o600
    assert len(box.path.read_text().splitlines()) == 2


def test_only_adopting_puts_a_new_owner_in_the_header(box: BlackBox) -> None:
    box.append(entry(1))
    adopted = BlackBox(box.path, "other", "another machine")
    adopted.adopt()
    assert adopted.header() == ("other", "another machine")
    assert adopted.read() == {"gpurun-a-b-c": entry(1)}


KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
from tests.test_blackbox import BlackBox, content_of, entry

path = Path(sys.argv[1])
box = BlackBox(path, "ow1234", "machine hash")
first, live = entry(1, label="gpurun-a-b-old", state="gone"), entry(2)

def compact_until(line):
    left = line
    def trace(frame, event, argument):
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    box.compact(lambda each: not each.settled)
    os._exit(0)

line, killed = 0, True
while killed:
    line += 1
    path.write_bytes(content_of(first, entry(1), live))
    child = os.fork()
    if child == 0:
        compact_until(line)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    assert box.read()["gpurun-a-b-c"] == live, line
    assert box.header() == ("ow1234", "machine hash"), line
assert "gpurun-a-b-old" not in box.read()
print(line)
"""


def test_a_compaction_killed_at_any_line_leaves_every_live_entry(box: BlackBox) -> None:
    told = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EACH_LINE, str(box.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > 100


def test_a_lock_that_is_never_freed_is_an_error_not_a_hang(
    box: BlackBox, hold_lock: Callable[[Path], None]
) -> None:
    box.append(entry(1))
    hold_lock(box.path.with_name("timers.log.lock"))
    with pytest.raises(TimeoutError):
        box.append(entry(2))
    assert box.read() == {"gpurun-a-b-c": entry(1)}  # reading needs no lock


@pytest.fixture
def hold_lock() -> Iterator[Callable[[Path], None]]:
    """A process that takes a lock and keeps it, as a stopped one does."""
    holders: list[subprocess.Popen[str]] = []

    def hold(path: Path) -> None:
        code = (
            "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX);"
            "print('held', flush=True); sys.stdin.read()"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

    yield hold
    for holder in holders:
        holder.communicate()


FULL_AFTER = """
import resource, signal, sys
from pathlib import Path
from tests.test_blackbox import BlackBox, entry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    BlackBox(Path(sys.argv[1]), "ow1234", "machine hash").append(entry(2))
except OSError:
    print("refused")
"""


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_line_that_the_disk_takes_only_in_part_is_an_error_and_hides_none(
    box: BlackBox, room: int
) -> None:
    box.append(entry(1))
    limit = box.path.stat().st_size + room
    told = subprocess.run(
        [sys.executable, "-c", FULL_AFTER, str(box.path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "refused\n"
    box.append(entry(3))
    assert box.read() == {"gpurun-a-b-c": entry(3)}


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        BlackBox(tmp_path / "absent" / "timers.log", "o", "m").append(entry())
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_that_a_person_has_ended_it_is_known_whatever_is_written_then(box: BlackBox) -> None:
    for state in ("made", KILLING, "deleting", "gone"):
        box.append(entry(1, state=state))
    box.append(entry(1, label="gpurun-a-b-killing-d"))
    assert box.read()["gpurun-a-b-c"].settled
    assert box.killed() == killed_labels(box.path) == {"gpurun-a-b-c"}
    assert killed_labels(box.path.with_name("absent")) == frozenset()


def test_a_note_of_a_kill_outlives_a_compaction_while_its_box_may_live(box: BlackBox) -> None:
    box.append(entry(1))
    box.append(entry(1, state=KILLING))
    box.compact(lambda each: not each.settled)
    assert box.killed() == {"gpurun-a-b-c"}
