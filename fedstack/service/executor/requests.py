"""Reads the messages of calls and writes the answers, large ones on threads: the loop is everybody's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from google.protobuf.message import Message

from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.off_loop import read_message
from fedstack.transport.peers.methods import UnaryMethod

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
_AT_ONCE = 256
# Enough to renew ten thousand leases.
CONTROL_BYTES = 1 << 20


def unary_to_bytes(request: type[_M], handle: Callable[[_M], Awaitable[bytes]]) -> UnaryMethod:
    """Returns the method of a coroutine that writes its answer itself."""

    async def run(content: bytes) -> bytes:
        return await handle(await read_message(request, content))

    return UnaryMethod(run)


def unary_sized(request: type[_M], handle: Callable[[_M, int], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine that also gets the size of the request in bytes; its answer is small."""

    async def run(content: bytes) -> bytes:
        return (await handle(await read_message(request, content), len(content))).SerializeToString()

    return UnaryMethod(run)


def unary(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine from message to message, of which the second is small."""
    return unary_sized(request, lambda message, _: handle(message))


def control(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine from message to message, both of which are small.

    A request that is not is refused before it is read: in protobuf's messages a byte becomes a hundred.
    """
    method = unary(request, handle)

    async def run(content: bytes) -> bytes:
        if len(content) > CONTROL_BYTES:
            raise ResourceLimitError(
                f"Expected at most {CONTROL_BYTES} bytes in a {request.DESCRIPTOR.name}, found {len(content)}; send "
                "less in one call"
            )
        return await method.handle(content)

    return UnaryMethod(run)


async def in_turns(items: Iterable[_T], at_once: int = _AT_ONCE) -> AsyncIterator[_T]:
    """Yields the items, and after so many of them lets others have the loop: there may be any number."""
    for index, item in enumerate(items, 1):
        yield item
        if not index % at_once:
            await asyncio.sleep(0)
