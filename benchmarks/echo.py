"""Moves bytes by gRPC and nothing else: the floors of what fedstack does with other processes.

`python -m benchmarks.echo TARGET` serves; `EchoServer` starts that in a process of its own and calls it. Both sides use
the options that fedstack uses, since those decide how large a message may be.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from benchmarks.memory import ROOT
from fedstack.transport.grpc.channels import CLIENT_OPTIONS, SERVER_OPTIONS
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import CHUNK_BYTES

_T = TypeVar("_T")
Bytes = NDArray[np.uint8]
_LENGTH_BYTES = 8
_READY_SECONDS = 30.0


async def _unary(request: bytes, _: object) -> bytes:
    return request


async def _pipelined(chunks: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    """Sends each chunk back as it comes: no value is ever whole at the server."""
    async for chunk in chunks:
        yield chunk


async def _held(chunks: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    """Sends an array back once all of it has come: the least that a service has to do that holds values."""
    array = await _received(chunks)
    for chunk in chunks_of([array.data]):
        yield chunk


async def _taken(chunks: AsyncIterator[bytes], _: object) -> bytes:
    """Takes in an array, and answers with its first bytes."""
    return _answer_to((await _received(chunks)).data)


async def _taken_whole(request: bytes, _: object) -> bytes:
    """Takes in one message, and answers with its first bytes."""
    return _answer_to(memoryview(request))


async def _sent(request: bytes, _: object) -> AsyncIterator[bytes]:
    """Sends as many bytes of an array as it is told, in chunks: gRPC takes `bytes`, so all are copied once."""
    chunk, size = np.zeros(CHUNK_BYTES, np.uint8).data, int.from_bytes(request, "little")
    for start in range(0, size, CHUNK_BYTES):
        yield bytes(chunk[: size - start])


def _answer_to(received: memoryview) -> bytes:
    answer = int.from_bytes(received[:_LENGTH_BYTES], "little")
    return received[_LENGTH_BYTES : _LENGTH_BYTES + answer].tobytes()


async def _received(chunks: AsyncIterator[bytes]) -> Bytes:
    array = np.empty(int.from_bytes(await anext(chunks), "little"), np.uint8)
    await _fill(array, chunks)
    return array


async def _fill(array: Bytes, chunks: AsyncIterator[bytes]) -> None:
    memory, position = array.data, 0
    async for chunk in chunks:
        memory[position : position + len(chunk)] = chunk
        position += len(chunk)
    assert position == len(memory)


def chunks_of(segments: Iterable[memoryview]) -> Iterator[bytes]:
    """Yields bytes in chunks; small segments share one."""
    pieces: list[memoryview] = []
    room = CHUNK_BYTES
    for segment in segments:
        start = 0
        while start < len(segment):
            piece = segment[start : start + room]
            pieces.append(piece)
            start += len(piece)
            room -= len(piece)
            if not room:
                yield b"".join(pieces)
                pieces, room = [], CHUNK_BYTES
    if pieces:
        yield b"".join(pieces)


class EchoServer:
    """A process that serves the floors, and the calls of them, on the loop on which fedstack's own calls run.

    gRPC is slower in a process in which it serves two loops, and the floors should not pay for that.

    Args:
      target: Where it is to listen, as gRPC writes it; at any port if that is 0.
    """

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.echo", target],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # as workers have it, see `BareProcess`
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            raise RuntimeError(f"Expected a server at {target}, found that it ended; see what it wrote")
        if target.endswith(":0"):
            target = target[:-1] + port
        self._channel = io_loop.run_sync(self._open(target))
        self._methods = {
            "Unary": self._channel.unary_unary("/echo/Unary"),
            "Pipelined": self._channel.stream_stream("/echo/Pipelined"),
            "Held": self._channel.stream_stream("/echo/Held"),
            "Taken": self._channel.stream_unary("/echo/Taken"),
            "TakenWhole": self._channel.unary_unary("/echo/TakenWhole"),
            "Sent": self._channel.unary_stream("/echo/Sent"),
        }

    async def _open(self, target: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(target, CLIENT_OPTIONS)
        await asyncio.wait_for(channel.channel_ready(), _READY_SECONDS)
        return channel

    async def unary(self, message: bytes) -> bytes:
        """Sends a message and returns what comes back."""
        return cast(bytes, await cast("Any", self._methods["Unary"])(message))

    async def pipelined(self, array: Bytes) -> Bytes:
        """Sends an array in chunks, which come back one by one."""
        return await self._exchange("Pipelined", array, chunks_of([array.data]))

    async def held(self, array: Bytes) -> Bytes:
        """Sends an array in chunks; it comes back when all of it is there."""
        return await self._exchange("Held", array, _with_length([array.data]))

    async def _exchange(self, method: str, array: Bytes, chunks: Iterator[bytes]) -> Bytes:
        call = cast("Any", self._methods[method])()
        sending = asyncio.ensure_future(_send(call, chunks))
        result = np.empty(len(array), np.uint8)
        await _fill(result, call)
        await sending
        return result

    async def take(self, segments: Sequence[memoryview]) -> bytes:
        """Sends segments in chunks; the first bytes of them come back when all are there."""
        call = cast("Any", self._methods["Taken"])()
        await _send(call, _with_length(segments))
        return cast(bytes, await call)

    async def take_whole(self, segments: Sequence[memoryview]) -> bytes:
        """Sends segments in one message; the first bytes of them come back."""
        return cast(bytes, await cast("Any", self._methods["TakenWhole"])(b"".join(segments)))

    async def receive(self, size: int) -> None:
        """Receives so many bytes in chunks."""
        async for chunk in cast("Any", self._methods["Sent"])(size.to_bytes(_LENGTH_BYTES, "little")):
            size -= len(chunk)
        assert size == 0

    def close(self) -> None:
        """Ends the connection and the process."""
        io_loop.run_sync(self._channel.close())
        self._process.communicate(timeout=_READY_SECONDS)

    def __enter__(self) -> "EchoServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer_of(size: int) -> memoryview:
    """Returns a segment that asks for an answer of so many bytes, when it is the first one."""
    return memoryview(size.to_bytes(_LENGTH_BYTES, "little"))


def _with_length(segments: Sequence[memoryview]) -> Iterator[bytes]:
    yield sum(map(len, segments)).to_bytes(_LENGTH_BYTES, "little")
    yield from chunks_of(segments)


async def _send(call: Any, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        await call.write(chunk)
    await call.done_writing()


def many_times(
    work: Callable[[], Awaitable[object]], times: int, in_flight: int = 1
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Returns what awaits work so many times, so many at a time."""

    async def one_by_one() -> None:
        for _ in range(times // in_flight):
            await work()

    async def all_of_them() -> None:
        await asyncio.gather(*(one_by_one() for _ in range(in_flight)))

    return one_by_one if in_flight == 1 else all_of_them


async def _serve(target: str) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(cast("Any", _unary)),
        "Pipelined": grpc.stream_stream_rpc_method_handler(cast("Any", _pipelined)),
        "Held": grpc.stream_stream_rpc_method_handler(cast("Any", _held)),
        "Taken": grpc.stream_unary_rpc_method_handler(cast("Any", _taken)),
        "TakenWhole": grpc.unary_unary_rpc_method_handler(cast("Any", _taken_whole)),
        "Sent": grpc.unary_stream_rpc_method_handler(cast("Any", _sent)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port(target)
    await server.start()
    print(port, flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Its parent holds standard input open as long as it lives.
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    await ended.wait()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
