"""Receives a message and, into the buffers of an unpacker, the bytes of the arrays that it announces."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, sized
from fedstack.service.executor.requests import read
from fedstack.transport.wire.parcels import Incoming
from fedstack.transport.wire.unpacking import Unpacker

_M = TypeVar("_M", bound=Message)
ReadAll: TypeAlias = Callable[[Unpacker], Awaitable[None]]


async def receive_value(incoming: Incoming, message: type[_M]) -> tuple[_M, int, ReadAll]:
    """Receives the header of a parcel.

    Returns:
      The header, its size in bytes, and what reads the rest of the parcel into the buffers of an unpacker.
    """
    header = await incoming.header()

    async def read_all(unpacker: Unpacker) -> None:
        size = sum(map(len, unpacker.buffers))
        await incoming.read_into(unpacker.buffers)
        await sized(size, unpacker.finish, LOOP_COPY_BYTES)

    return await read(message, header), len(header), read_all
