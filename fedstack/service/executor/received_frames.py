"""Receives a stream that has a header and then the bytes of the arrays that it announces."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, sized
from fedstack.service.executor.requests import read
from fedstack.transport.wire.frames import Data, Header, parse_frame
from fedstack.transport.wire.segments import SegmentReader
from fedstack.transport.wire.unpacking import Unpacker

_M = TypeVar("_M", bound=Message)
ReadAll: TypeAlias = Callable[[Unpacker], Awaitable[None]]


async def receive_value(frames: AsyncIterator[bytes], message: type[_M]) -> tuple[_M, int, ReadAll]:
    """Receives the header of a stream.

    Returns:
      The header, its size in bytes, and what reads the rest of the stream into the buffers of an unpacker.

    Raises:
      InvalidValueError: If the stream does not begin with a header.
    """
    first = await anext(frames, None)
    frame = await sized(len(first), lambda: parse_frame(first)) if first is not None else None
    if not isinstance(frame, Header):
        found = "nothing" if frame is None else type(frame).__name__
        raise InvalidValueError(f"Expected a stream that begins with its header, found {found}")

    async def read_all(unpacker: Unpacker) -> None:
        reader = SegmentReader(unpacker.buffers)
        async for content in frames:
            await sized(len(content), lambda content=content: _feed(reader, content), LOOP_COPY_BYTES)
        reader.finish()
        await sized(reader.expected, unpacker.finish, LOOP_COPY_BYTES)

    return await read(message, frame.content), len(frame.content), read_all


def _feed(reader: SegmentReader, content: bytes) -> None:
    frame = parse_frame(content)
    if not isinstance(frame, Data):
        raise InvalidValueError(f"Expected the data of a stream, found a {type(frame).__name__} in it")
    reader.feed(frame.data)
