"""What `keeper status` shows: who holds the keeper's lock, what it last wrote, what it will do; and
what it has noted of no run: how its messages fare, and how much of the caps is used.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gpurun.glance.reader import Reader
from gpurun.glance.rows import gather, instant, iso, keeper_of, parsed
from gpurun.glance.runs import LIVE, Document, document
from gpurun.locks import holder
from gpurun.places import Places

NEXT = 10
SENT, FAILED = "notify sent", "notify failed"
STANDS_FOR = timedelta(days=1)  # as long as it is tried again
LEVEL = "cap"
LONGEST = timedelta(days=32)
NOTIFY_KEYS = ("sent_at", "failed_at", "trouble")
CAP_KEYS = ("name", "usd", "counted_usd", "mark", "since", "until")


def keeper_document(places: Places, reader: Reader, now: datetime) -> Document:
    beats, accounts = reader.rows("keepers"), reader.rows("keeper_accounts")
    beat = beats[0] if beats else {}
    beat_at = instant(beat.get("beat_at"))
    marks = ", ".join("?" * len(LIVE))
    live = gather(reader, reader.rows("runs", f"WHERE state IN ({marks})", LIVE))
    keeper = keeper_of(reader)
    timers = _timers(document(parts, keeper, now) for parts in live)
    return {
        "pid": holder(places.keeper_lock),
        "version": beat.get("version"),
        "beat_at": iso(beat_at),
        "beat_age_s": round((now - beat_at).total_seconds(), 1) if beat_at else None,
        "live_runs": len(live),
        "next_timers": timers[:NEXT],
        "accounts": [
            {
                "provider": row["provider"],
                "account_id": row["account_id"],
                "listed_at": iso(instant(row.get("listed_at"))),
                "auth_ok": bool(row.get("auth_ok")),
                "detail": row.get("detail") or None,
            }
            for row in accounts
        ],
        "notify": notify_document(reader, now),
        "log": str(places.keeper_log),
    }


def caps_documents(reader: Reader, now: datetime) -> list[Document]:
    """The caps of this day and month that have passed a mark, as the keeper last noted them."""
    since = (now - LONGEST).timestamp()
    where = "WHERE run_id = '' AND what = ? AND at > ? ORDER BY id"
    last: dict[str, Document] = {}
    for row in reader.rows("events", where, [LEVEL, since]):
        noted = parsed(row.get("detail"), {})
        found = {key: noted.get(key) for key in CAP_KEYS}
        period = {key: _instant(noted.get(key)) for key in ("since", "until")}
        if period["until"] is not None:
            at = {key: iso(moment) for key, moment in period.items()}
            last[str(found["name"])] = found | at | {"noted_at": iso(instant(row.get("at")))}
    return [each for each in last.values() if each["mark"] and each["until"] > str(iso(now))]


def _instant(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _timers(runs: Iterable[Document]) -> list[Document]:
    """The next to fire first."""
    found = [
        {
            "run": run["id"],
            "recipe": run["recipe"],
            "kind": run["timer"]["kind"],
            "fires_at": run["timer"]["fires_at"],
            "ends_at": run["timer"]["ends_at"],
            "guards": [g["name"] for g in run["guards"] if g["state"] in ("armed", "lagging")],
        }
        for run in runs
        if run["timer"] is not None
    ]
    return sorted(found, key=lambda timer: str(timer["fires_at"]))


def notify_document(reader: Reader, now: datetime) -> Document:
    """When messages were last taken, or were not; of no run, so that the look is short."""
    last = {
        what: next(
            iter(
                reader.rows(
                    "events", "WHERE run_id = '' AND what = ? ORDER BY id DESC LIMIT 1", [what]
                )
            ),
            None,
        )
        for what in (SENT, FAILED)
    }
    sent, failed = last[SENT], last[FAILED]
    failed_at = instant(failed.get("at")) if failed else None
    newer = failed is not None and (sent is None or failed["id"] > sent["id"])
    stands = newer and failed_at is not None and now - failed_at < STANDS_FOR
    return {
        "sent_at": iso(instant(sent.get("at"))) if sent else None,
        "failed_at": iso(failed_at),
        "trouble": str(failed.get("detail")) if failed and stands else None,
    }
