"""The cloud's API at the same loopback address inside of a box as outside.

A box has its own network and no way out of it, yet its fuse must reach the provider at the address
that the adapter knows: 127.0.0.1 and a port.  So the cloud listens there too, on a socket made in
the box's network, and carries what arrives to its own port.  No packet leaves loopback.
"""

import asyncio
import ctypes
import os
import socket
import threading
from contextlib import suppress

CLONE_NEWNET = 0x40000000


class Inlet:
    """Listens at 127.0.0.1:`port` in the network of process `pid`, until it is closed."""

    def __init__(self, pid: int, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="inlet")
        self._thread.start()
        starting = asyncio.start_server(self._serve, sock=_listen_in(pid, port))
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)

    def close(self) -> None:
        """Refuse whoever asks from now on, and end what is open.  Twice is fine."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        open_now = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        # A cancelled task is a connection that ends here: the stream server would log it.
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await asyncio.gather(_carry(near_reader, far), _carry(far_reader, near))
            finally:
                far.close()
        near.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def _listen_in(pid: int, port: int) -> socket.socket:
    """A listening socket of another network: its thread goes there, and ends."""
    made: list[socket.socket] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def enter_and_listen() -> None:
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(network, CLONE_NEWNET) == 0:
                made.append(socket.create_server(("127.0.0.1", port)))
        finally:
            os.close(network)

    thread = threading.Thread(target=enter_and_listen)
    thread.start()
    thread.join()
    if not made:
        raise OSError(f"cannot listen in the network of process {pid}")
    return made[0]
