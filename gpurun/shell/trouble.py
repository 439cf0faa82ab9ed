"""Why a box cannot be worked with over SSH, told apart by what a caller can do about it."""

from enum import Enum

from gpurun.errors import PhaseFailed


class Why(Enum):
    """The reason in one word, for who decides; the error's text is for who reads."""

    UNKNOWN_HOST = "unknown host"
    PORT_CLOSED = "port closed"
    NO_ANSWER = "no answer"  # nothing came in time: host down, firewall, frozen box
    NOT_SSH = "not ssh"  # something else than an SSH server spoke
    CUT = "cut"  # the connection broke off: sshd busy, starting or gone
    KEY_MISSING = "key missing"
    KEY_UNREADABLE = "key unreadable"
    KEY_EXPOSED = "key exposed"  # others may read the key file
    KEY_LOCKED = "key locked"  # a passphrase, and no agent that holds the key
    NOT_ADMITTED = "not admitted"  # this user with this key
    NO_COMMANDS = "no commands"  # logged in, but commands do not run


class NoConnection(ConnectionError):
    """The box cannot be worked with now; no command was begun."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


class Unreachable(NoConnection):
    """No SSH server answered.  A box that boots does this; so does one that is gone."""


class LoginRefused(NoConnection):
    """An SSH server answered, or could, but does not let us work there."""

    @property
    def ours(self) -> bool:
        """The fault is this machine's key: waiting for the box cannot help."""
        return self.why in (Why.KEY_MISSING, Why.KEY_UNREADABLE, Why.KEY_EXPOSED, Why.KEY_LOCKED)


class OutcomeUnknown(ConnectionError):
    """A command was begun, and nobody can say how it ended."""


class HostKeyChanged(PhaseFailed):
    """Another machine answers where the box was; nothing was sent to it."""
