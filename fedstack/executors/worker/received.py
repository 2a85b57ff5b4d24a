"""Receives a message and, into the buffers of an unpacker, the bytes of the arrays that it announces."""

from typing import Generic, TypeVar

import attrs
from google.protobuf.message import Message

from fedstack.computations.codec.unpacking import Unpacker
from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, read_message, sized
from fedstack.transport.wire.parcels import Incoming

_M = TypeVar("_M", bound=Message)


@attrs.frozen
class Received(Generic[_M]):
    """A message that has come in, before the bytes that belong to it.

    Attributes:
      message: The message.
      size: Its bytes.
      rest: Where those that belong to it come from.
    """

    message: _M
    size: int
    rest: Incoming

    async def fill(self, unpacker: Unpacker) -> None:
        """Reads the bytes that belong to the message into the buffers of an unpacker.

        Raises:
          InvalidValueError: If there are more or fewer than the message announced.
        """
        await self.fill_next(unpacker)
        await self.end()

    async def fill_next(self, unpacker: Unpacker) -> None:
        """Reads the next of these bytes, where they are for several unpackers; call `end` after the last."""
        if not unpacker.buffers:
            unpacker.finish()
            return
        size = sum(map(len, unpacker.buffers))
        await self.rest.read_next(unpacker.buffers)
        await sized(size, unpacker.finish, LOOP_COPY_BYTES)

    async def end(self) -> None:
        """Checks that there are no more bytes.

        Raises:
          InvalidValueError: If there are.
        """
        await self.rest.read_into(())


async def receive(incoming: Incoming, message: type[_M]) -> Received[_M]:
    """Reads the message of a parcel.

    Raises:
      InvalidValueError: If it is none.
    """
    header = await incoming.header()
    return Received(await read_message(message, header), len(header), incoming)
