"""The one other reader of the journal: standard library, read-only, quick.

It never migrates and never writes, takes an older or newer schema as it is, and when the journal
cannot be read at all it answers from the black box, and says so.
"""

from datetime import datetime
from pathlib import Path

from gpurun.blackbox import Entry
from gpurun.errors import UsageError
from gpurun.glance import keeping, lines
from gpurun.glance.agreed import agreed_clock
from gpurun.glance.history import artifacts, bills_of, spending_of, timers_of
from gpurun.glance.reader import Reader, Row, Unreadable
from gpurun.glance.rows import (
    KEEPER_LISTED_WITHIN,
    Parts,
    gather,
    instant,
    iso,
    keeper_of,
    may_bill,
    parsed,
)
from gpurun.glance.runs import LIVE, Document, destroyed_at, document
from gpurun.glance.since import since_document as spending_since
from gpurun.locks import holder
from gpurun.places import Places

RECENT = 10
ORPHAN_KEYS = (  # what an older keeper has not written is null
    "provider",
    "account_id",
    "instance_id",
    "label",
    "usd_per_hour",
    "kind",
    "state",
    "whose",
    "owner_id",
    "created_at",
)

__all__ = [
    "ORPHAN_KEYS",
    "Document",
    "agreed_clock",
    "events",
    "final_document",
    "keeper_document",
    "needs_keeper",
    "report_document",
    "resolve",
    "run_document",
    "since_document",
    "status",
    "trouble",
]


def status(home: Path, now: datetime, *, every: bool = False, run: str | None = None) -> Document:
    """Live runs and the last ten that finished; all with `every`; one with its id in `run`."""
    places = Places(home)
    entries = lines.live_entries(places.blackbox)
    try:
        with Reader(places.database) as reader:
            chosen = _chosen(reader, every, run)
            keeper = keeper_of(reader)
            runs = [document(parts, keeper, now) for parts in gather(reader, chosen)]
            known = _known(reader, entries)
            accounts = reader.rows("keeper_accounts")
            caps = keeping.caps_documents(reader, now)
            notify = keeping.notify_document(reader, now)
        why = f"not in the journal, which was restored or replaced; known from {places.blackbox}"
    except Unreadable as error:
        runs, known, accounts, caps = [], set(), [], []
        notify = dict.fromkeys(keeping.NOTIFY_KEYS)
        why = _from_where(places, error)
    lost = [lines.document(e, why, now) for e in entries if e.label not in known]
    return {
        "checked_at": iso(now),
        "runs": [doc for doc in lost if run in (None, doc["id"])] + runs,
        "orphans": [
            {key: orphan.get(key) for key in ORPHAN_KEYS}
            for row in accounts
            for orphan in parsed(row.get("orphans_json"), [])
            if isinstance(orphan, dict)
        ],
        "orphans_checked_at": iso(
            min((at for row in accounts if (at := instant(row.get("listed_at")))), default=None)
        ),
        "troubles": _troubles(accounts, runs, now),
        "caps": caps,
        "notify": notify,
    }


def trouble(home: Path) -> str:
    """Why the journal cannot be read and where `status` has its answer from; empty if it can."""
    places = Places(home)
    try:
        with Reader(places.database) as reader:
            reader.rows("runs", "LIMIT 1")
    except Unreadable as error:
        return _from_where(places, error)
    return ""


def resolve(home: Path, prefix: str) -> str:
    """The id of the one run that begins like this; UsageError when there is none, or several."""
    places = Places(home)
    found = {lines.run_id_of(e.label) for e in lines.live_entries(places.blackbox)}
    note = ""
    try:
        with Reader(places.database) as reader:
            pattern = prefix.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") + "*"
            found |= {str(row["id"]) for row in reader.rows("runs", "WHERE id GLOB ?", [pattern])}
    except Unreadable as error:
        note = f" ({_from_where(places, error)})"
    matching = sorted(name for name in found if prefix and name.startswith(prefix))
    if prefix in matching or len(matching) == 1:
        return prefix if prefix in matching else matching[0]
    if matching:
        raise UsageError(f"{prefix!r} is the beginning of several runs: {', '.join(matching)}")
    raise UsageError(f"no run {prefix!r}{note}; `gpurun status --all` lists them")


def run_document(home: Path, run_id: str, now: datetime) -> Document:
    found = status(home, now, run=run_id)["runs"]
    if not found:
        raise UsageError(f"no run {run_id!r}; `gpurun status --all` lists them")
    return dict(found[0])


def events(home: Path, run_id: str) -> list[Document]:
    with _journal(home) as reader:
        return [
            {
                "at": iso(instant(row.get("at"))),
                "who": row.get("who"),
                "what": row.get("what"),
                "detail": row.get("detail"),
                "label": row.get("label") or None,
            }
            for row in reader.rows("events", "WHERE run_id = ? ORDER BY id", [run_id])
        ]


def final_document(home: Path, run_id: str, now: datetime) -> Document:
    """What `up --json` ends with: the run as in `status`, and what it leaves."""
    shown = run_document(home, run_id, now)
    with _journal(home) as reader:
        parts = _parts(reader, run_id)
        left = {"artifacts": artifacts(parts.run), "destroyed_at": iso(destroyed_at(parts))}
        return shown | spending_of(reader, parts, now) | left


def report_document(home: Path, run_id: str, now: datetime) -> Document:
    """The final document, with the bill of each box, every timer, and all that happened."""
    shown = final_document(home, run_id, now)
    with _journal(home) as reader:
        parts = _parts(reader, run_id)
        more = {"bills": bills_of(parts, now), "timers": timers_of(parts)}
    return shown | more | {"events": events(home, run_id)}


def since_document(home: Path, since: datetime, now: datetime) -> Document:
    """What the runs that lived since then have cost: by recipe, provider, GPU and phase."""
    with _journal(home) as reader:
        return spending_since(reader, since, now)


def keeper_document(home: Path, now: datetime) -> Document:
    """Who holds the keeper's lock, what it last wrote of itself, and what it will do next."""
    with _journal(home) as reader:
        return keeping.keeper_document(Places(home), reader, now)


def needs_keeper(home: Path) -> bool:
    """Something live, and nobody who ends it: the keeper's lock is free."""
    places = Places(home)
    return bool(_something_lives(places)) and holder(places.keeper_lock) is None


def _something_lives(places: Places) -> bool:
    try:
        with Reader(places.database) as reader:
            if reader.rows("runs", f"WHERE state IN ({_marks(LIVE)}) LIMIT 1", LIVE):
                return True
            attempts = reader.rows("instances", "WHERE state NOT IN ('gone', 'refused', 'expired')")
            if any(map(may_bill, attempts)):
                return True
            entries = lines.live_entries(places.blackbox)
            return len(entries) > len(_known(reader, entries))
    except Unreadable:
        return bool(lines.live_entries(places.blackbox))


def _chosen(reader: Reader, every: bool, run: str | None) -> list[Row]:
    if run is not None:
        return reader.rows("runs", "WHERE id = ?", [run])
    live = f"state IN ({_marks(LIVE)})"
    billing = [row for row in reader.rows("instances", "WHERE gone_at IS NULL") if may_bill(row)]
    back = {row["run_id"] for row in billing}
    rows = reader.rows("runs", f"WHERE {live} ORDER BY created_at DESC", LIVE)
    rows += [row for row in reader.of("runs", "id", sorted(back)) if row["state"] not in LIVE]
    rest = reader.rows(
        "runs",
        f"WHERE NOT {live} ORDER BY created_at DESC" + ("" if every else f" LIMIT {RECENT}"),
        LIVE,
    )
    return rows + [row for row in rest if row["id"] not in back]


def _known(reader: Reader, entries: list[Entry]) -> set[str]:
    return {row["label"] for row in reader.of("instances", "label", [e.label for e in entries])}


def _troubles(accounts: list[Row], runs: list[Document], now: datetime) -> list[Document]:
    """Where something of ours lives, and the keeper could not look when it last tried."""
    wanted = {run["provider"] for run in runs if run["state"] in LIVE}
    seen = {
        row["provider"]
        for row in accounts
        if (at := instant(row.get("listed_at"))) and now - at <= KEEPER_LISTED_WITHIN
    }
    return [
        {"provider": row["provider"], "why": f"its keeper could not look: {row['detail']}"}
        for row in accounts
        if row["provider"] in wanted - seen and not row.get("auth_ok") and row.get("detail")
    ]


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


def _journal(home: Path) -> Reader:
    try:
        return Reader(Places(home).database)
    except Unreadable as error:
        places = Places(home)
        raise UsageError(
            f"the journal {places.database} cannot be read: {error}. `gpurun status` and "
            f"`gpurun kill` go by {places.blackbox}"
        ) from error


def _parts(reader: Reader, run_id: str) -> Parts:
    rows = reader.rows("runs", "WHERE id = ?", [run_id])
    if not rows:
        raise UsageError(f"no run {run_id!r}; `gpurun status --all` lists them")
    return gather(reader, rows)[0]


def _from_where(places: Places, error: Unreadable) -> str:
    return (
        f"the journal {places.database} cannot be read: {error}. "
        f"What follows is from {places.blackbox}; killing works"
    )
