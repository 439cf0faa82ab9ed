"""An HTTP client for a provider: every call ends, and nothing goes where it should not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import httpx
import pytest

from gpurun import web
from gpurun.errors import UsageError
from tests.fakecloud import FakeClock

Answer = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """A server on loopback that answers each connection in the same way; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[socket.socket] = []

    def begin(answer: Answer) -> str:
        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    seen.append(connection)
                    connection.recv(65536)
                    with suppress(OSError):
                        answer(connection)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    with closing(listener):
        yield begin
        listener.shutdown(socket.SHUT_RDWR)
    for connection in seen:
        connection.close()


def get(url: str, call_s: float = 5.0) -> httpx.Response:
    with web.client("vast", url, "k", (), FakeClock(), call_s=call_s) as http:
        return http.get("/")


def test_an_answer_that_trickles_is_cut_off(serve: Callable[[Answer], str]) -> None:
    """Each byte comes in time, so that no read of its own would ever be late."""

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.05)

    url, began_s = serve(trickle), time.monotonic()
    with pytest.raises(httpx.ReadTimeout, match="no whole answer"):
        get(url, call_s=0.4)
    assert time.monotonic() - began_s < 5


def test_a_redirect_is_not_followed_with_the_key(serve: Callable[[Answer], str]) -> None:
    to = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
    assert get(serve(lambda connection: connection.sendall(to))).status_code == 307


def test_no_proxy_of_the_environment_is_used(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    assert get(serve(lambda connection: connection.sendall(ok))).text == "ok"


@pytest.mark.parametrize("url", ["http://console.example.org", "ftp://127.0.0.1", "vast", ""])
def test_a_key_goes_out_encrypted_or_to_this_machine_alone(url: str) -> None:
    with pytest.raises(UsageError, match="vast: "):
        web.client("vast", url, "k", (), FakeClock())


def test_a_key_that_cannot_be_one_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError) as refusal:
        web.client("vast", "https://example.org", "secret\nX-Other: 1", (), FakeClock())
    assert "secret" not in str(refusal.value)
