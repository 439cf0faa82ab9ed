"""What a person is told, found by the keeper in the journal; no driver tells anything.

A look has a thread of its own, and a tick never waits for it.  An event is told once, whatever is
restarted; one from before messages were wanted is told to nobody.
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from gpurun import glance, places
from gpurun import settings as configuration
from gpurun.clock import Clock
from gpurun.keeper import caps, telling
from gpurun.keeper.news import Document, News, news_of
from gpurun.keeper.post import Letter, Post
from gpurun.marks import MARKS
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.show.risk import NOT_YET_ARMED
from gpurun.store import Journal
from gpurun.store.notices import Glimpse
from gpurun.store.told import Told

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 5.0
CAPS_EVERY_S = 20.0
REST_TIMES = 50  # a look that takes long is made seldom: 2 % of a core at most
MOST_AT_A_LOOK = 50  # runs looked at closely; the others at the next
OLD_AFTER = timedelta(days=1)  # what ended before that is told to nobody
FEW_FOR_S = 60.0  # guards that come back within that were not missing
EARLY = ("started", "armed")
NO_RUN = ""


class Notices:
    """`step` is called each tick and never waits."""

    def __init__(self, places: Places, settings: Settings, clock: Clock, journal: Journal) -> None:
        self._places = places
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._post = Post(journal)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="news")
        self._looking = False
        self._due_s = float("-inf")
        self._caps_due_s = float("-inf")
        self._read_ns: int | None = None
        self._known: dict[str, tuple[object, ...]] = {}  # run: as it was when last considered
        self._over: set[str] = set()  # runs that have ended, to be considered
        self._again: dict[str, datetime] = {}  # run: when something of it may be due once more
        self._few_since_s: dict[str, float] = {}
        self._trouble = ""

    def working(self) -> bool:
        """Whether the journal is being looked at, or a message is on its way."""
        return self._looking or self._post.working()

    def step(self) -> None:
        if not self._looking and self._clock.boot_s() >= self._due_s:
            self._looking = True
            self._pool.submit(self._look)

    def _look(self) -> None:
        began_s = self._clock.boot_s()
        try:
            self._read_settings()
            if self._settings.notify:
                self._find()
            if self._clock.boot_s() >= self._caps_due_s:
                self._look_at_caps()
            self._trouble = ""
        except Exception as error:  # said once; nothing that is about messages stops the keeper
            if str(error) != self._trouble:
                log.exception("looking for news failed")
            self._trouble = str(error)
        finally:
            took_s = self._clock.boot_s() - began_s
            self._due_s = began_s + max(LOOK_EVERY_S, REST_TIMES * took_s)
            self._looking = False

    def _read_settings(self) -> None:
        """Addresses may be added while the keeper runs."""
        path = places.config_file()
        changed_ns = path.stat().st_mtime_ns if path.exists() else 0
        if self._read_ns is not None and changed_ns != self._read_ns:
            settings, trouble = configuration.load_for_ending()
            if trouble:
                log.error("messages go by the settings as they were: %s", trouble)
            else:
                self._settings = settings
        self._read_ns = changed_ns

    def _look_at_caps(self) -> None:
        began_s = self._clock.boot_s()
        rooms = self._journal.ledger.rooms(caps.all_caps(self._settings, self._clock.now()))
        self._journal.levels.note(rooms)
        if self._settings.notify:
            told = self._journal.tellings.of(NO_RUN)
            silent = telling.silent(told, self._clock.now())
            self._put(caps.news_of(rooms, self._settings.notify_on, silent), told)
        took_s = self._clock.boot_s() - began_s
        self._caps_due_s = began_s + max(CAPS_EVERY_S, REST_TIMES * took_s)

    def _find(self) -> None:
        began_at, now = self._journal.tellings.began_at(), self._clock.now()
        live = {each.run_id: each for each in self._journal.notices.glimpses()}
        seen = {run_id: self._seen(glimpse) for run_id, glimpse in live.items()}
        since = max(began_at, now - OLD_AFTER)
        gone = set(self._known) - set(live)
        self._over |= gone | (self._journal.notices.touched(since) - set(live))
        for run_id in gone:
            self._known.pop(run_id)
            self._few_since_s.pop(run_id, None)
        while not self._post.missed.empty():
            if run_id := self._post.missed.get():
                self._again[run_id] = now
        news = {run_id for run_id in live if self._known.get(run_id) != seen[run_id]}
        news |= self._over | {run_id for run_id, at in self._again.items() if at <= now}
        for run_id in sorted(news, key=lambda each: (each in live, each))[:MOST_AT_A_LOOK]:
            self._again.pop(run_id, None)
            if self._consider(run_id, began_at, since):
                self._over.discard(run_id)
                if run_id in live:
                    self._known[run_id] = seen[run_id]
            else:  # there was no room
                self._again[run_id] = now

    def _seen(self, glimpse: Glimpse) -> tuple[object, ...]:
        """What must differ for a run to be considered again."""
        percent = glimpse.spent_share * 100
        # A glimpse and the document do not agree to the cent: near a mark each look is another.
        money = percent if any(abs(percent - mark) < 1 for mark in MARKS) else int(percent)
        few = self._few(glimpse)
        stage = (glimpse.state, glimpse.phase, glimpse.ending, glimpse.judged, glimpse.kept)
        return (*stage, money if percent >= MARKS[0] - 1 else None, few)

    def _few(self, glimpse: Glimpse) -> bool:
        """Fewer than two guards, or no keeper, for a while."""
        early = glimpse.phase in NOT_YET_ARMED or glimpse.ending is not None
        if early or glimpse.guarded:
            self._few_since_s.pop(glimpse.run_id, None)
            return False
        self._few_since_s.setdefault(glimpse.run_id, self._clock.boot_s())
        return self._lacks_guards(glimpse.run_id)

    def _lacks_guards(self, run_id: str) -> bool:
        now_s = self._clock.boot_s()
        return now_s - self._few_since_s.get(run_id, now_s) >= FEW_FOR_S

    def _consider(self, run_id: str, began_at: datetime, since: datetime) -> bool:
        """Post what is news of this run; whether there was room for it."""
        run = glance.run_document(self._places.root, run_id, self._clock.now())
        if _ended_before(run, since):
            return True
        told, now = self._journal.tellings.of(run_id), self._clock.now()
        silent = telling.silent(told, now)
        if run["started_at"] and datetime.fromisoformat(run["started_at"]) < began_at:
            silent |= set(EARLY)
        if not self._lacks_guards(run_id):
            silent.add("guards")
        louder = telling.louder(told.get("still_billing"), now)
        dues = [telling.next_at(told, now)]
        if run["state"] == "still_billing":
            dues.append(louder.next_at)
        if again_at := min(filter(None, dues), default=None):
            self._again[run_id] = again_at
        return self._put(news_of(run, self._settings.notify_on, silent, louder), told)

    def _put(self, found: Iterable[News], told: Mapping[str, Told]) -> bool:
        """Whether there was room for all of it."""
        settings, nobody = self._settings, frozenset[int]()
        return all(
            [
                self._post.put(
                    Letter(news, settings, told[news.key].missing if news.key in told else nobody)
                )
                for news in found
            ]
        )


def _ended_before(run: Document, moment: datetime) -> bool:
    if run["state"] in ("active", "still_billing") or run["started_at"] is None:
        return False
    lasted = timedelta(seconds=run["elapsed_s"] or 0)
    return datetime.fromisoformat(run["started_at"]) + lasted < moment
