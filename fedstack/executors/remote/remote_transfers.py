"""Packs values into parcels for a peer, and unpacks the answers."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from fedstack.computations.codec.packing import Packer, write_typed
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.portability import warn_of_differing
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, parsed, sized
from fedstack.foundations.segments import Segment, SegmentReader
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.executor_stub import Answer, ExecutorStub
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Parcel, incoming_of
from fedstack.transport.wire.status import error_from_status

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


def packer_for(stub: ExecutorStub) -> Packer:
    """Returns a packer for one message to one of fedstack's own services."""
    return Packer(stub.chunking.large_bytes, references=True)


def pack_value(
    typed: extended.TypedValue, payload: object, type_spec: Type, peer: extended.HandshakeResponse, stub: ExecutorStub
) -> Sequence[Segment]:
    """Packs a value for one of fedstack's own services into an empty message; returns the bytes to send with it.

    Raises:
      ResourceLimitError: If it has more bytes than the peer accepts.
    """
    packer = packer_for(stub)
    write_typed(payload, type_spec, packer, typed)
    check_size(packer.segment_bytes, peer.max_value_bytes, lambda: f"a value of type {type_text(type_spec)}", stub)
    return packer.segments


def check_size(size: int, limit: int, what: Callable[[], str], stub: ServiceStub) -> None:
    """Checks a size against a peer's limit, before anything is sent."""
    if size > limit:
        raise ResourceLimitError(
            f"Expected at most {limit} bytes in a value or phase, found {size} in {what()}; send less at once, or "
            f"start the worker with a larger --max-value-bytes; for the worker at {stub.address}"
        )


async def evaluate(
    stub: ExecutorStub,
    peer: extended.HandshakeResponse,
    request: extended.EvaluateRequest,
    segments: Sequence[Segment],
    type_spec: Type | None = None,
) -> object:
    """Creates values of any size; returns the payload of the value that the request names, of the given type."""
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
    """Runs the values that a request names; returns for those that have ended their error, or `None`."""
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
    """Receives an answer: a header, and the bytes that belong to it.

    Args:
      answer: A call of a stub, or its answer if that came in one message.
      message: The type of the header.
      read: Reads the header, using the unpacker.
      unpacker: Provides the buffers for the bytes, once the header has been read.

    Returns:
      The result of `read`, once the bytes have arrived.

    Raises:
      DeadlineExceededError: If the peer was silent for too long.
      InvalidValueError: If it sent something else.
    """
    if isinstance(answer, Parcel):
        if len(answer.header) <= LOOP_BYTES and not answer.segments:  # the fast path for small, complete answers
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
