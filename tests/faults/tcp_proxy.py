"""A way between a client and a server that a test can cut, hold up and let fall silent.

A client that dials the proxy dials the same host for streams, at the port that the server names. So the proxy listens
at a host of its own, at the server's port for streams, too.
"""

import asyncio
import contextlib
import functools
import socket
import struct
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Literal, TypeAlias

import grpc

from fedstack.proto.streams_pb2 import OpenStreamRequest, OpenStreamResponse
from fedstack.transport.peers.executor_stub import with_protocol
from fedstack.transport.stream.dialing import OPEN_STREAM

WALL = 30.0
# All addresses of 127.0.0.0/8 are of the loopback device.
_HOST = "127.0.0.2"
Direction: TypeAlias = Literal["up", "down"]
_CHUNK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class _Lane:
    """One direction of all connections: counts bytes, and is open or not."""

    def __init__(self) -> None:
        self.bytes = 0
        self.limit: int | None = None
        self.swallows = False
        self.reached = threading.Event()
        self.open = asyncio.Event()
        self.open.set()


class TcpProxy:
    """Forwards connections to a server. Its methods may be called from any thread.

    Args:
      target: The server, as `host:port`.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.StreamWriter] = set()
        self._lanes: dict[Direction, _Lane] = {"up": _Lane(), "down": _Lane()}
        self._refuses = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy")
        self._thread.start()
        self._servers = [self._run(self._listen(self._port, 0))]
        self.target = f"{_HOST}:{self._servers[0].sockets[0].getsockname()[1]}"
        stream_port = _stream_port_of(target)
        if stream_port:
            self._servers.append(self._run(self._listen(stream_port, stream_port)))

    def hold_after(self, direction: Direction, count: int) -> threading.Event:
        """Lets so many more bytes pass in a direction; the event is set when another one has to wait."""
        lane = self._lanes[direction]
        lane.reached.clear()

        def hold() -> None:
            lane.limit = lane.bytes + count

        self._call(hold)
        return lane.reached

    def release(self) -> None:
        """Lets everything pass again."""

        def release() -> None:
            for lane in self._lanes.values():
                lane.limit = None
                lane.swallows = False
                lane.open.set()
            self._refuses = False

        self._call(release)

    def fall_silent(self) -> None:
        """Takes what either side sends and passes nothing on, as when a cable has been pulled far away."""

        def swallow() -> None:
            for lane in self._lanes.values():
                lane.swallows = True

        self._call(swallow)

    def cut(self, *, refuse: bool = False) -> None:
        """Resets all connections; new ones are taken, unless they are to be refused."""

        def cut() -> None:
            self._refuses = refuse
            for lane in self._lanes.values():
                lane.limit = None
                lane.open.set()
            for writer in self._streams:
                connection: socket.socket = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

        self._call(cut)

    def bytes(self, direction: Direction) -> int:
        """How many bytes have passed."""
        return self._lanes[direction].bytes

    async def _listen(self, beyond: int, port: int) -> asyncio.Server:
        return await asyncio.start_server(functools.partial(self._serve, beyond), _HOST, port)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._streams.add(writer)
        beyond: asyncio.StreamWriter | None = None
        try:
            if self._refuses:
                return
            back, beyond = await asyncio.open_connection(self._host, port)
            self._streams.add(beyond)
            pumps = [
                asyncio.ensure_future(self._pump(reader, beyond, self._lanes["up"])),
                asyncio.ensure_future(self._pump(back, writer, self._lanes["down"])),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is gone, and so is the connection to it; or the test has ended
        finally:
            self._tasks.discard(task)
            for stream in (writer, beyond):
                if stream is not None:
                    self._streams.discard(stream)
                    stream.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: _Lane) -> None:
        while content := await reader.read(_CHUNK):
            while content:
                await lane.open.wait()
                room = len(content) if lane.limit is None else lane.limit - lane.bytes
                if room <= 0:
                    lane.open.clear()
                    lane.reached.set()
                    continue
                part, content = content[:room], content[room:]
                lane.bytes += len(part)
                if not lane.swallows:
                    writer.write(part)
                    await writer.drain()

    def _call(self, work: Callable[[], None]) -> None:
        async def call() -> None:
            work()

        self._run(call())

    def _run(self, coroutine):  # type: ignore[no-untyped-def]
        future: futures.Future[object] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(WALL)

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WALL)
        self._loop.close()


def _stream_port_of(target: str) -> int:
    """Returns the port where a server accepts streams; 0 if it accepts none."""
    with grpc.insecure_channel(target) as channel:
        ask = channel.unary_unary(OPEN_STREAM, response_deserializer=OpenStreamResponse.FromString)
        try:
            return ask(with_protocol(OpenStreamRequest()).SerializeToString(), timeout=WALL).port
        except grpc.RpcError:
            return 0


class Proxies:
    """The proxies of one test."""

    def __init__(self) -> None:
        self._made: list[TcpProxy] = []

    def before(self, target: str) -> TcpProxy:
        """Returns a new proxy that forwards to a server."""
        self._made.append(TcpProxy(target))
        return self._made[-1]

    def close(self) -> None:
        for proxy in self._made:
            proxy.close()
