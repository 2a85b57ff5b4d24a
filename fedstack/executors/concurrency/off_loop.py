"""Keeps event loops free: work that grows with what was sent runs on threads, and what is small right away.

Threads share the interpreter lock with the loop, which gets it back every few milliseconds. So this is for Python's
own steps, of which there may be many: decoding, checking, tracing. Code of users runs on leaf threads, which it may
keep for as long as it likes.
"""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.leaf_threads import LeafThreads

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")

# Messages up to this size are worked on where they come in: at the worst a byte costs a microsecond.
LOOP_BYTES = 16 << 10
# Larger pieces of raw bytes are copied at gigabytes a second.
LOOP_COPY_BYTES = 4 << 20
# A byte of a struct or a list costs many times what one of an array does.
PIECES_WEIGHT = 8
# What takes longer has threads of its own, so that small things need not wait for it.
_LIGHT_BYTES = 1 << 20
_light_threads = LeafThreads(2, idle_seconds=1.0, work_ends=True)
_threads = LeafThreads(4, idle_seconds=1.0, work_ends=True)


async def off_loop(work: Callable[[], _T]) -> _T:
    """Runs work on a thread and returns its result; on this thread where that blocks no loop."""
    return await _threads.run(work)


async def sized(size: int, work: Callable[[], _T], most: int = LOOP_BYTES) -> _T:
    """Runs work on something of a size: on a thread if it is large."""
    if size <= most:
        return work()
    return await (_light_threads if size <= _LIGHT_BYTES else _threads).run(work)


async def read_message(message: type[_M], content: bytes) -> _M:
    """Returns a message from its bytes.

    Raises:
      InvalidValueError: If they are none.
    """
    if len(content) <= LOOP_BYTES:
        return parsed(message, content)
    return await sized(len(content), lambda: parsed(message, content))


def parsed(message: type[_M], content: bytes) -> _M:
    """Returns a message from its bytes, on this thread; see `read_message`."""
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a {message.DESCRIPTOR.name}, found {len(content)} bytes that are none, or are nested too deep: "
            f"{error}"
        ) from error
