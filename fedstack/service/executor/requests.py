"""Reads the messages of calls and writes the answers, large ones on threads: the loop is everybody's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.executors.concurrency.off_loop import LOOP_BYTES, sized
from fedstack.transport.peers.methods import UnaryMethod

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
_AT_ONCE = 256
# Enough to renew ten thousand leases.
CONTROL_BYTES = 1 << 20


def control(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine from message to message, both of which are small.

    A request that is not is refused before it is read: in protobuf's messages a byte becomes a hundred.
    """

    async def run(content: bytes) -> bytes:
        if len(content) > CONTROL_BYTES:
            raise ResourceLimitError(
                f"Expected at most {CONTROL_BYTES} bytes in a {request.DESCRIPTOR.name}, found {len(content)}; send "
                "less in one call"
            )
        return (await handle(await read(request, content))).SerializeToString()

    return UnaryMethod(run)


def unary(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine from message to message, of which the second is small."""

    async def run(content: bytes) -> bytes:
        return (await handle(await read(request, content))).SerializeToString()

    return UnaryMethod(run)


def unary_sized(request: type[_M], handle: Callable[[_M, int], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine that also gets the size of the request in bytes."""

    async def run(content: bytes) -> bytes:
        return (await handle(await read(request, content), len(content))).SerializeToString()

    return UnaryMethod(run)


def unary_to_bytes(request: type[_M], handle: Callable[[_M], Awaitable[bytes]]) -> UnaryMethod:
    """Returns the method of a coroutine that writes its answer itself."""

    async def run(content: bytes) -> bytes:
        return await handle(await read(request, content))

    return UnaryMethod(run)


async def read(message: type[_M], content: bytes) -> _M:
    """Returns a message from its bytes.

    Raises:
      InvalidValueError: If they are none.
    """
    if len(content) <= LOOP_BYTES:
        return _parsed(message, content)
    return await sized(len(content), lambda: _parsed(message, content))


def _parsed(message: type[_M], content: bytes) -> _M:
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a {message.DESCRIPTOR.name}, found {len(content)} bytes that are none, or are nested too deep: "
            f"{error}"
        ) from error


async def in_turns(items: Iterable[_T], at_once: int = _AT_ONCE) -> AsyncIterator[_T]:
    """Yields the items, and after so many of them lets others have the loop: there may be any number."""
    for index, item in enumerate(items, 1):
        yield item
        if not index % at_once:
            await asyncio.sleep(0)
