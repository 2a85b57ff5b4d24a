"""Packs values for a peer, and unpacks the peer's responses.

Large values that all clients of a phase share are written to a file in memory, once for all workers of this machine.
The workers map the file instead of receiving copies, so the machine has such a value once, however many workers it has.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence
from typing import TypeVar

import attrs
import numpy as np
from google.protobuf.message import Message

from fedstack.computations.codec.packing import Packer, write_typed
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.portability import warn_of_differing
from fedstack.computations.leaves.work_scope import SystemScope
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, off_loop, parsed, sized
from fedstack.foundations.memory_files import LEAST_BYTES, SealedFile
from fedstack.foundations.message_room import MessageRoom
from fedstack.foundations.segments import Rows, Segment, SegmentReader
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.executor_stub import Answer, ExecutorStub
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Parcel, ParcelFile, Span, incoming_of
from fedstack.transport.wire.status import error_from_status

# Large contributions are received at the same time up to this size, and up to this share of the computer's memory.
_ROOM_BYTES, _ROOM_SHARE = 256 << 20, 0.01
# After this time, a contribution is received anyway: a peer that stands still must not hold up others for long.
_ROOM_SECONDS = 5.0
_rooms: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, MessageRoom]" = weakref.WeakKeyDictionary()
# For one worker, a file of 128 MB takes 57 ms and a copy 49 ms; for two 51 and 103 ms, for eight 65 and 340 ms.
LEAST_WORKERS = 2
_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


def packer_for(stub: ExecutorStub, stores: Container[str] = ()) -> Packer:
    """Returns a packer for a single message to one of fedstack's services, which has some stores, too."""
    return Packer(stub.chunking.large_bytes, references=True, stores=stores)


def pack_value(
    typed: extended.TypedValue, payload: object, type_spec: Type, peer: extended.HandshakeResponse, stub: ExecutorStub
) -> Sequence[Segment]:
    """Packs a value for one of fedstack's services.

    Args:
      typed: An empty message, into which the value is written.
      payload: The payload of the value.
      type_spec: The type of the value.
      peer: The peer's response to the handshake.
      stub: Calls the peer.

    Returns:
      The bytes of large arrays, to send together with the message.

    Raises:
      ResourceLimitError: If the value has more bytes than the peer accepts.
    """
    packer = packer_for(stub)
    write_typed(payload, type_spec, packer, typed)
    check_size(packer.segment_bytes, peer.max_value_bytes, lambda: f"a value of type {type_text(type_spec)}", stub)
    return packer.segments


def check_size(size: int, limit: int, what: Callable[[], str], stub: ServiceStub) -> None:
    """Checks a size against the limit of a peer, before any data is sent.

    Raises:
      ResourceLimitError: If the size exceeds the limit.
    """
    if size > limit:
        raise ResourceLimitError(
            f"Expected at most {limit} bytes in a value or phase, found {size} bytes in {what()}; send less data at "
            "once, or start the worker with a larger --max-value-bytes; this is a restriction of the worker at "
            f"{stub.address}"
        )


@attrs.define(eq=False)
class _Written:
    """A file that is being written.

    Attributes:
      views: The memory that is written. It stays alive, since files are looked up by its addresses.
      file: The file; `None` if the system has no such files, or no room for one.
    """

    views: Sequence[memoryview]
    file: "asyncio.Task[SealedFile | None]"


class SharedFiles(SystemScope):
    """Part of the scope of one run of a phase: the files with values that its workers share.

    Attributes:
      workers: The number of workers.
    """

    __slots__ = ("_files", "workers")

    def __init__(self) -> None:
        self.workers = 0
        self._files: dict[tuple[tuple[int, int], ...], _Written] = {}

    def close(self) -> None:
        """Releases the files and the values, once nothing more is sent. Requests that are being sent keep theirs."""
        self._files.clear()  # their tasks refer to the scope that this object is part of

    async def file_of(self, packer: Packer) -> ParcelFile | None:
        """Returns a file with the packed values that all clients share, or `None` if none is worth it.

        Args:
          packer: The packer with the values of one worker.
        """
        if self.workers < LEAST_WORKERS:
            return None
        views: list[memoryview] = []
        starts: list[int] = []
        shared, start = set(packer.shared), 0
        for index, segment in enumerate(packer.segments):
            if index in shared and not isinstance(segment, Rows):
                views.append(segment)
                starts.append(start)
            start += len(segment)
        if sum(map(len, views)) < LEAST_BYTES:
            return None
        key = tuple((_address_of(view), len(view)) for view in views)
        written = self._files.get(key)
        if written is None:
            written = self._files[key] = _Written(views, asyncio.ensure_future(_write(views)))
        file = await asyncio.shield(written.file)
        if file is None:
            return None
        spans: list[Span] = [(start, len(view), at) for start, view, at in zip(starts, views, file.starts)]
        return ParcelFile(file, spans)


def _address_of(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


async def _write(views: Sequence[memoryview]) -> SealedFile | None:
    def write() -> SealedFile | None:
        try:
            return SealedFile(views)
        except OSError:
            return None

    return await off_loop(write)


async def evaluate(
    stub: ExecutorStub,
    peer: extended.HandshakeResponse,
    request: extended.EvaluateRequest,
    segments: Sequence[Segment],
    type_spec: Type | None = None,
) -> object:
    """Creates values of any size on a peer.

    Args:
      stub: Calls the peer.
      peer: The peer's response to the handshake.
      request: The request, with the values to create and, optionally, the id of a value to compute.
      segments: The bytes of the values' large arrays.
      type_spec: The type of the value to compute; `None` if the request names no such value.

    Returns:
      The payload of the computed value; `None` if the request names no such value.
    """
    unpacker = Unpacker(for_results=True)

    def read(header: extended.EvaluateResponse) -> object:
        warn_of_differing(header.differing_module, stub.address)
        return None if type_spec is None else unpacker.unpack(header.value, type_spec, "result")

    answer = await stub.evaluate(request, segments, peer.heartbeat_seconds)
    return await receive(answer, extended.EvaluateResponse, read, unpacker)


async def start(
    stub: ExecutorStub,
    peer: extended.HandshakeResponse,
    request: extended.StartRequest,
    segments: Sequence[Segment] = (),
) -> Mapping[str, Exception | None]:
    """Starts the computation of the values that a request names.

    Returns:
      The values that have finished, by id, each with its error or, if the value succeeded, `None`.
    """
    answer = await stub.start(request, segments, peer.heartbeat_seconds)
    unpacker = Unpacker(max_bytes=0)
    response = await receive(answer, extended.StartResponse, lambda response: response, unpacker)
    warn_of_differing(response.differing_module, stub.address)
    return {one.id: _error_of(one, stub.address) for one in response.outcome}


def _error_of(outcome: extended.StartResponse.Outcome, address: str) -> Exception | None:
    if not outcome.HasField("error"):
        return None
    status = outcome.error
    return error_from_status(status.code, status.message, status.SerializeToString(), address)


async def receive(answer: Answer | Parcel, message: type[_M], read: Callable[[_M], _T], unpacker: Unpacker) -> _T:
    """Receives a response, which consists of a header and the bytes of its large arrays.

    Args:
      answer: A stub's call, or the response itself if it was received in a single message.
      message: The type of the header.
      read: Reads the header, using the unpacker.
      unpacker: Provides the buffers for the bytes, once the header has been read.

    Returns:
      The result of `read`, once all bytes have been received.

    Raises:
      DeadlineExceededError: If the peer did not respond in time.
      InvalidValueError: If the response is invalid.
    """
    if isinstance(answer, Parcel):
        if len(answer.header) <= LOOP_BYTES and not answer.segments:  # the fast path for small, complete responses
            result = read(parsed(message, answer.header))
            if unpacker.buffers:
                SegmentReader(unpacker.buffers).finish()
            unpacker.finish()
            return result
        answer = contextlib.nullcontext(incoming_of(answer))
    async with answer as incoming:
        header = await incoming.header()
        result = await sized(len(header), lambda: read(parsed(message, header)))
        await incoming.read_into(unpacker.buffers)
    unpacker.finish()
    return result


@contextlib.asynccontextmanager
async def room_for(size: int, order: int) -> AsyncGenerator[None, None]:
    """Waits until few other contributions are being received, and counts this one until the block ends.

    Peers keep what they are not asked for. If it comes in order, most partial results can be merged at once, so that
    they need no memory here.

    Args:
      size: The size of the contribution in bytes.
      order: The index of its first client. Of contributions that wait, the first in this order is next.
    """
    loop = asyncio.get_running_loop()
    room = _rooms.get(loop)
    if room is None:
        room = _rooms[loop] = MessageRoom(max(_ROOM_BYTES, int(_memory_bytes() * _ROOM_SHARE)), _ROOM_SECONDS)
    is_counted = await room.take(size, order)
    try:
        yield
    finally:
        if is_counted:
            room.give_back(size)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # pragma: no cover - unknown on this platform
        return 0
