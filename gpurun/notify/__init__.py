"""Messages to a person, by whatever apprise can reach.

Addresses are secrets: they hold tokens.  Each message is sent by a process of its own, which ends
within `WITHIN_S` whatever a service does; addresses and text reach it by its stdin.  What it says
back names a service and the place of its address in the settings, never the address.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

EVENTS = (
    "started",
    "armed",
    "50%",
    "80%",
    "95%",
    "stuck",
    "finished",
    "killed",
    "kept",
    "still_billing",
    "guards",
)
WITHIN_S = 10.0
ENDS_AFTER_S = 2.0  # more, and the sender ends itself: whoever started it may be gone
MISSING = "apprise is not installed: run `pip install 'gpurun[notify]'` in gpurun's environment"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one message at one service."""

    number: int  # of its address in `notify`, from 1
    service: str  # the scheme of its address, as `slack`
    trouble: str  # empty: it was taken

    @property
    def ok(self) -> bool:
        return not self.trouble

    def line(self) -> str:
        return f"notify[{self.number}] ({self.service}): {self.trouble or 'sent'}"


def service_of(url: str) -> str:
    """The scheme alone: what follows may be a token."""
    scheme, found, _ = url.strip().partition("://")
    return scheme.lower() if found and scheme.isalnum() and len(scheme) < 20 else "no address"


def standing(addresses: int, events: Sequence[str]) -> tuple[bool, str]:
    """Whether messages could be sent, and one line for `doctor`; nothing is sent."""
    if not addresses:
        return True, "no address in `notify`: nobody is told of anything"
    if importlib.util.find_spec("apprise") is None:
        return False, MISSING
    plural = "es" if addresses > 1 else ""
    return True, f"{addresses} address{plural}, told of {', '.join(events)}; `gpurun notify test`"


def send(
    urls: Sequence[tuple[int, str]],
    title: str,
    body: str,
    *,
    urgent: bool = False,
    within_s: float = WITHIN_S,
) -> list[Delivery]:
    """Send to each address, given with its number; returns within `within_s`, and never raises."""
    kind = "failure" if urgent else "info"
    order = {"urls": list(urls), "title": title, "body": body, "kind": kind, "within_s": within_s}
    said, why = _said(json.dumps(order), within_s)
    return [
        Delivery(number, service_of(url), said.get(number, why or "no answer"))
        for number, url in urls
    ]


def _said(order: str, within_s: float) -> tuple[dict[int, str], str]:
    """What the sender found out of each address, and what is said of the others."""
    why = ""
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "gpurun.notify"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a library may say an address there
            text=True,
        )
    except OSError as error:
        return {}, f"no process could be started ({error.strerror})"
    try:
        output, _ = child.communicate(order, timeout=within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
        why = f"no answer within {within_s:.0f} s"
    said: dict[int, str] = {}
    for line in output.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            said[int(told["number"])] = str(told["trouble"])
    return said, why
