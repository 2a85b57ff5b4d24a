"""Reads the messages and values of calls and writes the answers; large ones on threads, to keep the loop free."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message

from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.types.language import Type
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, PIECES_WEIGHT, read_message, sized
from fedstack.executors.worker.receiving import Received
from fedstack.foundations.deadline import let_others_run
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.peers.methods import UnaryMethod

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
_AT_ONCE = 256
# Enough to renew ten thousand leases.
CONTROL_BYTES = 1 << 20
_ARRAYS = ("array", "raw", "column", "rows")
# How often running work is checked for progress to report.
_LOOK_SECONDS = 1.0


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
    """Returns the method of a coroutine that takes a message and returns a small one."""
    return unary_sized(request, lambda message, _: handle(message))


def control(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns the method of a coroutine from a small message to a small message.

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
            await let_others_run()


async def read_value(
    packed: Packed,
    read: Callable[[Unpacker], tuple[object, Type]],
    received: Received[Any],
    *,
    check: Callable[[int], None],
    max_bytes: int,
    clients: int | None = None,
) -> tuple[object, Type, int]:
    """Returns the payload of a value, with the bytes that follow, its type and its size.

    Args:
      packed: The value.
      read: Returns the payload and its type; it may take long for a large message.
      received: Its message, and the bytes of its large arrays.
      check: Called with each known size before memory is allocated for it; raises if the size is too large.
      max_bytes: The most bytes that it may announce.
      clients: The number of clients that it has to be for; `None` for any number.
    """
    size = await sized(received.size, packed.ByteSize)
    check(size)
    unpacker = Unpacker(max_bytes=max_bytes, clients=clients)
    weight = size if packed.WhichOneof("kind") in _ARRAYS else PIECES_WEIGHT * size
    payload, type_spec = read(unpacker) if weight <= LOOP_BYTES else await sized(weight, lambda: read(unpacker))
    if unpacker.buffers:
        size += sum(map(len, unpacker.buffers))
        check(size)
    await received.fill_next(unpacker)
    return payload, type_spec, size
