"""Sending, in a thread of its own behind a bounded queue: a service that hangs delays nothing.

An event is written down before its message leaves, so that no restart sends it again.  What a
service did not take is tried twice more, and what became of it is kept for `keeper status`.
"""

import logging
import os
import queue
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun import notify
from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper.news import News
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.notices import FAILED, SENT

log = logging.getLogger("gpurun.keeper")

WAITING = 100
TOGETHER = 20  # events that have come while one was being sent travel in one message
AGAIN_AFTER_S = (15.0, 120.0)
LOOK_AGAIN_S = 5.0
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
SHORTEST_SECRET = 6


@dataclass(frozen=True, slots=True)
class _Message:
    title: str
    body: str
    urls: tuple[tuple[int, str], ...]  # each with its number in the settings
    tries: int = 0
    due_s: float = 0.0


class Post:
    """`put` never waits."""

    def __init__(self, clock: Clock, journal: Journal) -> None:
        self._clock = clock
        self._journal = journal
        self._queue: queue.Queue[tuple[News, Settings]] = queue.Queue(maxsize=WAITING)
        self._under_way: set[tuple[str, str]] = set()  # run, event
        self._again: list[_Message] = []
        self._sender: threading.Thread | None = None

    def working(self) -> bool:
        return bool(self._under_way)

    def put(self, news: News, settings: Settings) -> bool:
        """False when there is no room now."""
        key = (news.run_id, news.event)
        if key in self._under_way:
            return True
        self._under_way.add(key)
        try:
            self._queue.put_nowait((news, settings))
        except queue.Full:
            self._under_way.discard(key)
            return False
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, daemon=True, name="notify")
            self._sender.start()
        return True

    def _send_all(self) -> None:
        while True:
            batch = self._next()
            try:
                if batch:
                    self._send_news([news for news, _ in batch], batch[-1][1])
                self._try_again()
            except Exception:  # the next message may be a better one
                log.exception("sending a message failed")
            for news, _ in batch:
                self._under_way.discard((news.run_id, news.event))

    def _next(self) -> list[tuple[News, Settings]]:
        """All that waits, up to a message's fill; nothing when it is time to try one again."""
        try:
            batch = [self._queue.get(timeout=LOOK_AGAIN_S if self._again else None)]
        except queue.Empty:
            return []
        while len(batch) < TOGETHER and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

    def _send_news(self, batch: Sequence[News], settings: Settings) -> None:
        fresh = [each for each in batch if self._journal.notices.tell(each.run_id, each.event)]
        if not fresh:
            return
        title, body = fresh[0].title, fresh[0].body
        if len(fresh) > 1:
            title = f"gpurun: {len(fresh)} events"
            body = "\n\n".join(f"{each.title}\n{each.body}" for each in fresh)
        urls = [url.get_secret_value() for url in settings.notify]
        hidden = _secrets(settings)
        self._send(_Message(_clean(title, hidden), _clean(body, hidden), tuple(enumerate(urls, 1))))

    def _try_again(self) -> None:
        now_s = self._clock.boot_s()
        for message in [each for each in self._again if each.due_s <= now_s]:
            self._again.remove(message)
            self._send(message)

    def _send(self, message: _Message) -> None:
        found = notify.send(message.urls, message.title, message.body)
        missed = {each.number for each in found if not each.ok}
        if missed and message.tries < len(AGAIN_AFTER_S) and len(self._again) < WAITING:
            due_s = self._clock.boot_s() + AGAIN_AFTER_S[message.tries]
            urls = tuple(url for url in message.urls if url[0] in missed)
            again = _Message(message.title, message.body, urls, message.tries + 1, due_s)
            self._again.append(again)
        said = "; ".join(each.line() for each in found)
        (log.error if missed else log.info)("%s", said)
        try:
            self._journal.notices.note(FAILED if missed else SENT, said)
        except GpurunError as error:
            log.error("%s", error)


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
