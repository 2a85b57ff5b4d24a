"""Reads the messages and values of calls and writes the answers. Large messages are processed on threads."""

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
# The maximum size of a control message, enough to renew ten thousand leases.
CONTROL_BYTES = 1 << 20
_ARRAYS = ("array", "raw", "column", "rows")
# The interval at which running work is checked for progress to report.
_LOOK_SECONDS = 1.0


def unary_to_bytes(request: type[_M], handle: Callable[[_M], Awaitable[bytes]]) -> UnaryMethod:
    """Returns a method that runs `handle`, which takes a request message and returns the bytes of the answer."""

    async def run(content: bytes) -> bytes:
        return await handle(await read_message(request, content))

    return UnaryMethod(run)


def unary_sized(request: type[_M], handle: Callable[[_M, int], Awaitable[Message]]) -> UnaryMethod:
    """Returns a method that runs `handle`, which takes a request message and its size and returns a small message."""

    async def run(content: bytes) -> bytes:
        return (await handle(await read_message(request, content), len(content))).SerializeToString()

    return UnaryMethod(run)


def unary(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns a method that runs `handle`, which takes a request message and returns a small message."""
    return unary_sized(request, lambda message, _: handle(message))


def control(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    """Returns a method that runs `handle`, which takes a small request message and returns a small message.

    A larger request is refused before it is parsed, because a parsed message may need a hundred times its size.
    """
    method = unary(request, handle)

    async def run(content: bytes) -> bytes:
        if len(content) > CONTROL_BYTES:
            raise ResourceLimitError(
                f"Expected at most {CONTROL_BYTES} bytes in a {request.DESCRIPTOR.name}, found {len(content)}; split "
                "the request into several calls"
            )
        return await method.handle(content)

    return UnaryMethod(run)


async def in_turns(items: Iterable[_T], at_once: int = _AT_ONCE) -> AsyncIterator[_T]:
    """Yields the items, and lets other work on the event loop run after every `at_once` items."""
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
    """Reads a value and the bytes that follow it, and returns its payload, its type and its size in bytes.

    Args:
      packed: The value.
      read: Returns the payload and its type. Reading a large message may take long.
      received: The message with the value, and the bytes of its large arrays.
      check: Called with each size before memory is allocated for it. Raises if the size is too large.
      max_bytes: The maximum number of bytes that the value may announce.
      clients: The required number of clients; `None` for any number.
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
