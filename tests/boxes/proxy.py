"""A TCP proxy on loopback that is slow, silent, or rude, as told.  The kernel here has no netem."""

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType


class Proxy:
    """Forward connections to `host`:`port`, changed for the worse.

    `latency_s` is added to every chunk in each direction, so that a round trip takes twice as
    long; `bytes_per_s` limits each direction of each connection (0: no limit).  Both may be
    changed at any time.  It listens on 127.0.0.1, at the port in `port`.
    """

    host = "127.0.0.1"

    def __init__(
        self, host: str, port: int, *, latency_s: float = 0.0, bytes_per_s: float = 0.0
    ) -> None:
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._accepts = True
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    def __enter__(self) -> "Proxy":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Pass nothing on: what is sent from now on waits, connections stay open."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def heal(self) -> None:
        """End `cut`: what has waited goes on its way."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def refuse(self) -> None:
        """Reset whoever connects from now on; open connections go on."""
        self._accepts = False

    def accept(self) -> None:
        """End `refuse`."""
        self._accepts = True

    def reset(self) -> None:
        """End every open connection with a RST to both sides."""
        asyncio.run_coroutine_threadsafe(self._reset_all(), self._loop).result(10)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._open)

    async def _start(self) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset_all()

    async def _reset_all(self) -> None:
        ending = dict(self._open)
        for task, writers in ending.items():
            for writer in writers:
                _reset(writer)
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if not self._accepts:
            _reset(near)
            return
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(near)
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = [near, far]
        for writer in (near, far):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A cancelled task is a connection that was reset: the stream server would log it.
        with suppress(asyncio.CancelledError):
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._carry(near_reader, far))
                    both.create_task(self._carry(far_reader, near))
            finally:
                del self._open[task]
                near.close()
                far.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: read at once, deliver each chunk when its time has come."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)
        delivering = asyncio.create_task(self._deliver(under_way, writer))
        try:
            while chunk := await _read(reader):
                await under_way.put((self._loop.time() + self.latency_s, chunk))
            await under_way.put((self._loop.time() + self.latency_s, b""))
            await delivering
        finally:
            delivering.cancel()

    async def _deliver(
        self, under_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while True:
                due_s, chunk = await under_way.get()
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                await self._flows.wait()
                if not chunk:
                    writer.write_eof()
                    return
                writer.write(chunk)
                await writer.drain()
                if self.bytes_per_s:
                    await asyncio.sleep(len(chunk) / self.bytes_per_s)


async def _read(reader: asyncio.StreamReader) -> bytes:
    with suppress(OSError):
        return await reader.read(65536)
    return b""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side gets a RST."""
    linger = struct.pack("ii", 1, 0)
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
