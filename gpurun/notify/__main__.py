"""The sender: one message, from stdin, to each of its addresses at once; a line for each answer."""

import json
import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any

from gpurun.notify import ENDS_AFTER_S, MISSING

UNKNOWN = "apprise knows no such address: see https://appriseit.com/services/"
REFUSED = "it did not take the message: is the address right, and the service there?"


def main() -> None:
    order = json.load(sys.stdin)
    signal.alarm(int(order["within_s"] + ENDS_AFTER_S))
    try:
        import apprise
    except ImportError:
        for number, _ in order["urls"]:
            _say(number, MISSING)
        return
    each = [
        threading.Thread(target=_send, args=(apprise, number, url, order), daemon=True)
        for number, url in order["urls"]
    ]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    sys.stdout.flush()
    os._exit(0)  # nothing that a service has started keeps this process


def _send(apprise: ModuleType, number: int, url: str, order: dict[str, Any]) -> None:
    try:
        service = apprise.Apprise.instantiate(url, suppress_exceptions=True)
        if service is None:
            _say(number, UNKNOWN)
            return
        kind = getattr(apprise.NotifyType, order["kind"].upper())  # some show it in a colour
        taken = service.notify(title=order["title"], body=order["body"], notify_type=kind)
        _say(number, "" if taken else REFUSED)
    except Exception as error:  # another package's code; its text might hold the address
        _say(number, f"it failed: {type(error).__name__}")


def _say(number: int, trouble: str) -> None:
    sys.stdout.write(json.dumps({"number": number, "trouble": trouble}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
