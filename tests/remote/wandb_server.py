"""A server that wandb can log a run to: what is asked of it when a run is online, and no more."""

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ME, PROJECT = "me", "arc"


@dataclass
class Logged:
    """What arrived."""

    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    address: str = ""


@contextlib.contextmanager
def wandb_server() -> Iterator[Logged]:
    logged = Logged()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self._body()
            if self.path == "/graphql":
                self._answer({"data": _graphql(logged, json.loads(body))})
                return
            if self.path.endswith("/file_stream"):
                new = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
                logged.history += map(json.loads, new.get("content", []))
            self._answer({})

        def do_PUT(self) -> None:
            logged.files[self.path.removeprefix("/files/")] = self._body()
            self._answer({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _answer(self, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    logged.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield logged
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _graphql(logged: Logged, asked: dict[str, Any]) -> dict[str, Any]:
    """The data of an answer; wandb 0.31's queries, told by their first field."""
    query, given = asked["query"], asked.get("variables") or {}
    if "upsertBucket" in query:
        logged.config |= json.loads(given.get("config") or "{}")
        project = {"id": "p", "name": PROJECT, "entity": {"id": "e", "name": ME}}
        bucket = {"id": "r", "name": given["name"], "displayName": "", "description": ""}
        bucket |= {"config": "{}", "sweepName": None, "project": project, "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}
    if "createRunFiles" in query:
        files = [
            {"name": name, "uploadUrl": f"{logged.address}/files/{name}"} for name in given["files"]
        ]
        return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
    if "viewer" in query:
        viewer = {"id": "u", "entity": ME, "username": ME, "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}
    return {"entity": {"organization": None}}
