"""Receives a stream that has a header and then the bytes of the arrays that it announces."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from fedstack.errors import InvalidValueError
from fedstack.service.executor_group import parsed
from fedstack.transport.frames import Data, Header, parse_frame
from fedstack.transport.packing import Unpacker
from fedstack.transport.segments import SegmentReader

_M = TypeVar("_M", bound=Message)
ReadAll: TypeAlias = Callable[[Unpacker], Awaitable[None]]


async def receive_value(frames: AsyncIterator[bytes], message: type[_M]) -> tuple[_M, ReadAll]:
    """Receives the header of a stream.

    Returns:
      The header, and what reads the rest of the stream into the buffers of an unpacker.

    Raises:
      InvalidValueError: If the stream does not begin with a header.
    """
    first = await anext(frames, None)
    frame = parse_frame(first) if first is not None else None
    if not isinstance(frame, Header):
        found = "nothing" if frame is None else type(frame).__name__
        raise InvalidValueError(f"Expected a stream that begins with its header, found {found}")

    async def read_all(unpacker: Unpacker) -> None:
        reader = SegmentReader(unpacker.buffers)
        async for content in frames:
            frame = parse_frame(content)
            if not isinstance(frame, Data):
                raise InvalidValueError(f"Expected the data of a stream, found a {type(frame).__name__} in it")
            reader.feed(frame.data)
        reader.finish()
        unpacker.finish()

    return parsed(message, frame.content), read_all
