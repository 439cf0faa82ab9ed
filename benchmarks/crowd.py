"""Many live runs at once, for `python -m benchmarks.keeper`: a journal of them, a cloud that lists
them, and their drivers' locks.

The journal is filled by the store's own orders.  The cloud answers as Vast does, a page of 25 rows
at a time, and is asked by the real adapter; it is not the emulated one of the tests, which keeps
time and a meter for each box.  This process holds every run's lock, as its driver would.
"""

import json
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpurun import keystore
from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.locks import hold
from gpurun.model import AttemptState, Timer
from gpurun.recipe import load
from gpurun.signals import TOLD
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.owner import machine_hash
from gpurun.timers import entry_of, timer_for
from tests.clouds.serve import cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.renter import Renter
from tests.homes import Home
from tests.stories import Story

ACCOUNT = 310077
PAGE = 25
GRACE_S = 4.0
TABLES = ("runs", "instances", "timers", "guards", "phases", "ledger", "events")
GUARDS = [("fuse", True), ("keeper", True)]


@dataclass
class Crowd:
    """What its cloud has, and when each was ended."""

    rows: dict[int, dict[str, Any]]
    asked: Counter[str] = field(default_factory=Counter)
    ended_at: dict[str, datetime] = field(default_factory=dict)  # by label
    url: str = ""
    fill_s: float = 0.0  # how long it took to write the runs down
    timers: dict[str, Timer] = field(default_factory=dict)  # of those that are due, by label

    def lateness(self, database: Path) -> tuple[list[float], list[float]]:
        """Of each timer that was due: seconds until it was claimed, and until its DELETE came."""
        with closing(sqlite3.connect(database)) as connection:
            asked = "SELECT label, fired_at FROM timers WHERE seq = 1 AND fired_at IS NOT NULL"
            fired = dict(connection.execute(asked).fetchall())
        timers = self.timers.values()
        return (
            [
                fired[timer.label] - timer.fires_at.timestamp()
                for timer in timers
                if timer.label in fired
            ],
            [(self.ended_at[timer.label] - timer.ends_at).total_seconds() for timer in timers],
        )


@contextmanager
def crowd(home: Home, size: int, ends_in_s: list[float], clock: Clock) -> Iterator[Crowd]:
    """`size` runs that train, the first of them with timers that end their boxes so soon."""
    with ExitStack() as stack:
        made = Crowd(_rows(size))
        made.url = stack.enter_context(_served(made, clock))
        keystore.store(home.config, "vast", "0" * 64)
        os.environ["VAST_URL"] = made.url
        home.places.ensure()
        before = signal.signal(TOLD, signal.SIG_IGN)  # drivers that do nothing
        stack.callback(signal.signal, TOLD, before)
        began_s = clock.boot_s()
        run_ids = _fill(home, made, ends_in_s, clock)
        made.fill_s = clock.boot_s() - began_s
        for run_id in run_ids:
            stack.enter_context(hold(home.places.run_lock(run_id)))
        yield made


def _rows(size: int) -> dict[int, dict[str, Any]]:
    """Of one box at the emulated cloud, so often."""
    with cloud("vast", boxes=StubBoxes()) as vast:
        renter = Renter(vast)
        row = renter.show(renter.rent(label="like this"))
    return {number: row | {"id": number} for number in range(1000001, 1000001 + size)}


def _fill(home: Home, made: Crowd, ends_in_s: list[float], clock: Clock) -> list[str]:
    """The first run by the store's orders, the others as copies of its rows: a thousand times ten
    commits take minutes.
    """
    journal = Journal(home.places.database, clock)
    journal.database.migrate()
    owner_id, _ = journal.owner.ensure()
    story = Story(journal, clock, "r0000000", provider="vast")
    label = f"gpurun-{owner_id}-{story.run_id}-bench1"
    recipe = json.dumps(load(str(home.recipe()), provider="local").to_dict())
    journal.runs.add(replace(story.run(), recipe_json=recipe))
    epoch = journal.runs.take(story.run_id)
    first = next(iter(made.rows))
    usd = Decimal(str(round(made.rows[first]["dph_total"], 6)))
    attempt = replace(story.attempt(), label=label, account_id=str(ACCOUNT), usd_per_hour=usd)
    timer = _timer(label, 86400.0, clock)
    journal.attempts.intend(attempt, timer, GUARDS, Decimal(1), Caps(run_usd=Decimal(13)), epoch)
    journal.attempts.sending(label, epoch)
    journal.attempts.made(label, str(first), "answer")
    journal.attempts.seen(label, clock.now(), None)
    journal.runs.begin_phase(story.run_id, label, "train", "ab12", epoch)
    journal.timers.guard(label, "fuse", "armed", seq=1, ends_at=timer.ends_at)
    journal.close()
    names = {number: f"r{index:07}" for index, number in enumerate(made.rows)}
    timers = {
        name: _timer(label.replace(story.run_id, name), left_s, clock)
        for name, left_s in zip_longest(names.values(), ends_in_s, fillvalue=86400.0)
    }
    made.timers = {timer.label: timer for timer in list(timers.values())[: len(ends_in_s)]}
    _copy(home.places.database, (story.run_id, str(first)), names, timers)
    blackbox = BlackBox(home.places.blackbox, owner_id, machine_hash())
    for number, name in names.items():
        made.rows[number]["label"] = timers[name].label
        known = replace(attempt, label=timers[name].label, instance_id=str(number))
        blackbox.append(entry_of(known, timers[name], AttemptState.SEEN))
    return list(names.values())


def _timer(label: str, left_s: float, clock: Clock) -> Timer:
    ends_at = clock.now() + timedelta(seconds=left_s)
    return timer_for(label, 1, "run", ends_at - timedelta(seconds=GRACE_S), ends_at, clock)


def _copy(
    database: Path, old: tuple[str, str], names: dict[int, str], timers: dict[str, Timer]
) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.row_factory = sqlite3.Row
        for table in TABLES:
            rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
            for number, name in list(names.items())[1:]:
                for row in rows:
                    new = {
                        column: value.replace(old[0], name).replace(old[1], str(number))
                        if isinstance(value, str)
                        else value
                        for column, value in row.items()
                        if column != "id" or table == "runs"
                    }
                    marks = ", ".join("?" * len(new))
                    connection.execute(
                        f"INSERT INTO {table} ({', '.join(new)}) VALUES ({marks})",
                        tuple(new.values()),
                    )
        for timer in timers.values():
            connection.execute(
                "UPDATE timers SET fires_at = ?, ends_at = ?, fires_boot_s = ?, ends_boot_s = ? "
                "WHERE label = ?",
                (
                    timer.fires_at.timestamp(),
                    timer.ends_at.timestamp(),
                    timer.fires_boot_s,
                    timer.ends_boot_s,
                    timer.label,
                ),
            )


@contextmanager
def _served(made: Crowd, clock: Clock) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*_got(made, self.path))

        def do_DELETE(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            for number in body.get("instance_ids") or [_number(self.path)]:
                row = made.rows.pop(number, None)
                if row is not None:
                    made.ended_at[row["label"]] = clock.now()
            self._answer("DELETE", {"success": True})

        def _answer(self, what: str, body: dict[str, Any]) -> None:
            made.asked[what] += 1
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _got(made: Crowd, path: str) -> tuple[str, dict[str, Any]]:
    where, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
    if where.startswith("/api/v0/users/"):
        return "account", {"id": ACCOUNT, "credit": 1000, "balance": 0}
    if where.startswith("/api/v0/instances/"):
        return "instance", {"instances": made.rows.get(_number(path))}
    if where.startswith("/api/v1/instances/"):
        after = int(query["after_token"][0]) if "after_token" in query else 0
        rows = [row for number, row in sorted(made.rows.items()) if number > after]
        page, total = rows[:PAGE], len(made.rows)
        token = str(page[-1]["id"]) if len(rows) > PAGE else None
        return "page", {"instances": page, "next_token": token, "total_instances": total}
    return "other", {"success": True, "results": [], "schedules": []}


def _number(path: str) -> int:
    return int(urlsplit(path).path.strip("/").rpartition("/")[2])
