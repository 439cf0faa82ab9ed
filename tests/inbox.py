"""A service on this machine that takes the messages of apprise's `json://`."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Inbox:
    """Keeps what is posted to it; refuses, or answers never, when it is told to."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.asked = 0
        self.refuses = False
        self.hangs = False
        self.meanwhile: Callable[[], object] = lambda: None  # before it answers
        self._over = threading.Event()
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.asked += 1
                inbox.meanwhile()
                if inbox.hangs:
                    inbox._over.wait()
                    return
                if not inbox.refuses:
                    inbox.messages.append(json.loads(body))
                self.send_response(500 if inbox.refuses else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """With a token, and with patience: it is not apprise that ends the waiting."""
        return f"json://127.0.0.1:{self._server.server_port}/hunter2-token?rto=3600&cto=3600"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]

    @property
    def text(self) -> str:
        return json.dumps(self.messages)

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
