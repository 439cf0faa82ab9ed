"""Sending, in a thread of its own behind a bounded queue: a service that hangs delays nothing.

News is claimed in the journal before its message leaves, so that no restart sends it again; what a
service did not take is written down after that, so that none forgets it.
"""

import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun import notify
from gpurun.errors import GpurunError
from gpurun.keeper.news import News
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.told import SENT, Key

log = logging.getLogger("gpurun.keeper")

WAITING = 100
TOGETHER = 20  # events that have come while one was being sent travel in one message
WRITES = 240  # of a quarter of a second
URGENT = ("still_billing",)
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
SHORTEST_SECRET = 6


@dataclass(frozen=True, slots=True)
class Letter:
    """News, and the numbers of the addresses that lack it; none: it is for all of them."""

    news: News
    settings: Settings
    to: frozenset[int] = frozenset()

    @property
    def key(self) -> Key:
        return self.news.run_id, self.news.key


class Post:
    """`put` never waits."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queue: queue.Queue[Letter] = queue.Queue(maxsize=WAITING)
        self._under_way: set[Key] = set()
        self._sender: threading.Thread | None = None
        self._said = ""  # of the last message that was not taken
        self.missed: queue.SimpleQueue[str] = queue.SimpleQueue()  # runs

    def working(self) -> bool:
        return bool(self._under_way)

    def put(self, letter: Letter) -> bool:
        """False when there is no room now."""
        if letter.key in self._under_way:
            return True
        self._under_way.add(letter.key)
        try:
            self._queue.put_nowait(letter)
        except queue.Full:
            self._under_way.discard(letter.key)
            return False
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, daemon=True, name="notify")
            self._sender.start()
        return True

    def _send_all(self) -> None:
        while True:
            batch = self._next()
            try:
                for to in {letter.to for letter in batch}:
                    self._send([letter for letter in batch if letter.to == to])
            except Exception:  # the next message may be a better one
                log.exception("sending a message failed")
                for letter in batch:
                    self.missed.put(letter.news.run_id)
            for letter in batch:
                self._under_way.discard(letter.key)

    def _next(self) -> list[Letter]:
        """All that waits, up to a message's fill."""
        batch = [self._queue.get()]
        while len(batch) < TOGETHER and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

    def _send(self, letters: Sequence[Letter]) -> None:
        """To the same addresses."""
        claimed = self._journal.tellings.claim([each.key for each in letters])
        letters = [each for each in letters if each.key in claimed]
        if not letters:
            return
        settings, to = letters[-1].settings, letters[-1].to
        news = sorted((each.news for each in letters), key=lambda each: each.event not in URGENT)
        title, body, urgent = news[0].title, news[0].body, news[0].event in URGENT
        if len(news) > 1:
            more = f", and {len(news) - 1} more"
            title = f"{title}{more}" if urgent else f"gpurun: {len(news)} events"
            body = "\n\n".join(f"{each.title}\n{each.body}" for each in news)
        addresses = enumerate((url.get_secret_value() for url in settings.notify), 1)
        urls = [(number, url) for number, url in addresses if not to or number in to]
        if not urls:  # those that lacked it are not told of anything any more
            return
        hidden = _secrets(settings)
        found = notify.send(urls, _clean(title, hidden), _clean(body, hidden), urgent=urgent)
        self._note(letters, found)

    def _note(self, letters: Sequence[Letter], found: Sequence[notify.Delivery]) -> None:
        missed = frozenset(each.number for each in found if not each.ok)
        said = "; ".join(each.line() for each in found)
        if missed and said != self._said:  # an address that is wrong is so each time
            log.error("%s", said)
        self._said = said if missed else ""
        keys, tellings = [each.key for each in letters], self._journal.tellings
        if not missed:
            self._written(lambda: tellings.note(SENT, said))
            return
        self._written(lambda: tellings.missed(keys, missed, said))
        for run_id, _ in keys:
            self.missed.put(run_id)

    def _written(self, write: Callable[[], None]) -> None:
        """What is not written would pass for sent; how long a locked journal is waited for is the
        pause between two tries.
        """
        said = ""
        for _ in range(WRITES):
            try:
                write()
                return
            except GpurunError as error:
                if str(error) != said:
                    log.error("%s", error)
                said = str(error)


def _clean(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "(secret)")
    return text


def _secrets(settings: Settings) -> list[str]:
    """All that this process knows, the longest first."""
    kept = [settings.keys, settings.box_keys, settings.secrets]
    known = {secret.get_secret_value() for each in kept for secret in each.values()}
    known |= {url.get_secret_value() for url in settings.notify}
    known |= {value for name, value in os.environ.items() if SECRET_NAME.search(name)}
    return sorted((s for s in known if len(s) >= SHORTEST_SECRET), key=len, reverse=True)
