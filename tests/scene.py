"""One run in a journal, and what the keeper tells of it to a service that listens here."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from pydantic import SecretStr

from gpurun import notify
from gpurun.clock import Deadline
from gpurun.keeper.notices import Notices
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store.ledger import Caps
from tests.fakecloud import FakeClock
from tests.inbox import Inbox
from tests.stories import Story, journal_at


class Scene:
    """One run in a journal, and what the keeper tells of it."""

    def __init__(self, root: Path, inbox: Inbox, on: tuple[str, ...] = notify.EVENTS) -> None:
        self.root = root
        self.clock = FakeClock()
        self.journal = journal_at(root, self.clock)
        self.story = Story(self.journal, self.clock)
        self.inbox = inbox
        self.settings = Settings(notify=(SecretStr(inbox.url),), notify_on=on)
        self.key_taken = True
        self.notices = self.started()

    def started(self) -> Notices:
        return Notices(Places(self.root), self.settings, self.clock, self.journal)

    def look(self, after_s: float = 6) -> list[str]:
        """The titles that have come by the end of the next look."""
        self.clock.advance(after_s)
        self.journal.keepers.beat("0.1.0")
        if self.key_taken:
            self.journal.keepers.listed("local", "account-1")
        else:
            self.journal.keepers.not_listed("local", "account-1", "401")
        self.notices.step()
        deadline = Deadline(30, poll_s=0.01)
        while self.notices.working() and not deadline.passed():
            pass
        assert not self.notices.working()
        return self.inbox.titles

    def rented(self) -> "Scene":
        self.look()  # from here on messages are wanted
        self.story.rented(minutes=600)
        self.story.watched()
        self.fuse()
        self.story.phase("setup")
        return self

    def armed(self) -> None:
        seq = 2
        timer = self.story.timer(seq, 600, "run")
        caps = Caps(run_usd=Decimal(13))
        self.journal.timers.arming(timer, self.story.run_id, self.story.epoch, Decimal(1), caps)
        assert self.journal.timers.put_in_force(timer)
        self.fuse(seq)
        self.story.phase("train")

    def fuse(self, seq: int = 1, name: str = "fuse") -> None:
        ends_at = self.clock.now() + timedelta(hours=10)
        self.journal.timers.guard(self.story.label, name, "armed", seq=seq, ends_at=ends_at)


def noted(scene: Scene, what: str) -> bool:
    with scene.journal.database.read() as session:
        ask = session.connection().exec_driver_sql
        return bool(ask("SELECT 1 FROM events WHERE what = :what", {"what": what}).all())
