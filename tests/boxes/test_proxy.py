"""The proxy that spoils connections on their way to a box."""

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.boxes import Box, Proxy, box

pytestmark = pytest.mark.box


@pytest.fixture(scope="module")
def rented() -> Iterator[Box]:
    with box() as made:
        yield made


def test_a_proxy_adds_its_latency_to_both_directions(rented: Box) -> None:
    with Proxy(rented.host, rented.port, latency_s=0.1) as slow:
        began_s = time.monotonic()
        with socket.create_connection((slow.host, slow.port)) as wire:
            wire.settimeout(20)
            assert wire.recv(4) == b"SSH-"
            assert 0.1 <= time.monotonic() - began_s < 2
        slow.latency_s = 0
        with socket.create_connection((slow.host, slow.port)) as wire:
            wire.recv(64)
            slow.latency_s = 0.1
            began_s = time.monotonic()
            wire.sendall(b"nonsense\r\n")  # sshd says what it thinks of that, and closes
            wire.settimeout(20)
            assert wire.recv(64)
            assert 0.2 <= time.monotonic() - began_s < 2


def test_a_proxy_is_cut_refuses_and_resets_on_demand(rented: Box) -> None:
    with (
        Proxy(rented.host, rented.port) as proxy,
        socket.create_connection((proxy.host, proxy.port)) as wire,
    ):
        wire.settimeout(20)
        assert wire.recv(64).startswith(b"SSH-")
        proxy.cut()
        wire.sendall(b"nonsense\r\n")
        wire.settimeout(0.3)
        with pytest.raises(TimeoutError):
            wire.recv(64)
        proxy.refuse()
        with socket.create_connection((proxy.host, proxy.port)) as refused:
            refused.settimeout(20)
            with pytest.raises(ConnectionResetError):
                refused.recv(4)
        assert proxy.connections == 1
        proxy.reset()
        wire.settimeout(20)
        with pytest.raises(ConnectionResetError):
            wire.recv(4)
        assert proxy.connections == 0


def test_a_proxy_with_a_rate_takes_its_time(rented: Box) -> None:
    with Proxy(rented.host, rented.port, bytes_per_s=1_000_000) as slow:
        options = [*rented.ssh_options(), f"-oPort={slow.port}"]
        options[options.index("-oPort=22")] = f"-oPort={slow.port}"
        began_s = time.monotonic()
        done = subprocess.run(
            ["ssh", *options, f"root@{slow.host}", "head -c 500000 /dev/urandom"],
            capture_output=True,
        )
        assert len(done.stdout) == 500_000
        assert time.monotonic() - began_s > 0.5
