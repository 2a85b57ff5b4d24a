"""Moves values and phases of any size to a peer and back, in chunks, with an eye on the peer's heartbeat."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from fedstack.computations.types.language import Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.executors.concurrency.off_loop import sized
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.executor_stub import ELEMENTS, ExecutorStub
from fedstack.transport.wire.frames import (
    Chunking,
    Data,
    Header,
    Heartbeat,
    data_frames,
    header_frame,
    parse_frame,
)
from fedstack.transport.wire.heartbeat import watch
from fedstack.transport.wire.packing import Packer
from fedstack.transport.wire.segments import Segment, SegmentReader
from fedstack.transport.wire.unpacking import Unpacker

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
# How many heartbeats may stay away before the peer counts as dead.
_MISSED_BEATS = 4
_UPLOAD_SECONDS = 60.0
# What is slow for any network.
_LEAST_BYTES_PER_SECOND = 1e6
# A peer that answers with more than it was asked for is wrong; this only keeps it from filling the memory.
_MAX_RESULT_BYTES = 1 << 40


def packer_for(peer: extended.HandshakeResponse, stub: ExecutorStub) -> Packer:
    """Returns what packs one message for one of fedstack's own services."""
    return Packer(stub.chunking.large_bytes, elements=ELEMENTS in peer.features)


def pack_value(
    payload: object, type_spec: Type, peer: extended.HandshakeResponse, stub: ExecutorStub
) -> tuple[extended.TypedValue, Sequence[Segment]]:
    """Packs a value for one of fedstack's own services: the message, and the bytes that go with it.

    Raises:
      ResourceLimitError: If it has more bytes than the peer takes.
    """
    packer = packer_for(peer, stub)
    typed = extended.TypedValue()
    typed.type.CopyFrom(type_spec.to_proto())
    packer.pack(typed.value, payload, type_spec)
    check_size(packer.segment_bytes, peer.max_value_bytes, lambda: f"a value of type {type_text(type_spec)}", stub)
    return typed, packer.segments


def check_size(size: int, limit: int, what: Callable[[], str], stub: ExecutorStub) -> None:
    """Checks a size against what a peer takes, before anything is sent."""
    if size > limit:
        raise ResourceLimitError(
            f"Expected at most {limit} bytes in a value or phase, found {size} in {what()}; send less at once, or "
            f"start the worker with a larger --max-value-bytes; for the worker at {stub.address}"
        )


async def upload(stub: ExecutorStub, header: extended.Upload, segments: Sequence[Segment]) -> None:
    """Sends a value."""
    size = sum(map(len, segments))
    await stub.upload_value(
        frames_of(header, segments, stub.chunking), _UPLOAD_SECONDS + size / _LEAST_BYTES_PER_SECOND
    )


def frames_of(header: Message, segments: Sequence[Segment], chunking: Chunking) -> Iterator[bytes]:
    """Yields a message and the bytes that go with it as frames."""
    yield header_frame(header)
    yield from data_frames(segments, chunking.chunk_bytes)


def read_response(response: extended.ComputeNowResponse, type_spec: Type) -> object:
    """Returns the payload of a value that came in one message."""
    unpacker = Unpacker(max_bytes=0)
    payload = unpacker.unpack(response.value, type_spec, "result")
    unpacker.finish()
    return payload


async def load(stub: ExecutorStub, peer: extended.HandshakeResponse, request: extended.CreateRequest) -> None:
    """Creates values that may take long to load."""
    content = request.SerializeToString()

    def read(header: extended.CreateResponse) -> None:
        pass

    # The peer is silent until it has the whole request.
    spare_seconds = len(content) / _LEAST_BYTES_PER_SECOND
    await receive(
        stub.load(content),
        extended.CreateResponse,
        read,
        Unpacker(max_bytes=0),
        peer.heartbeat_seconds,
        spare_seconds,
        address=stub.address,
    )


async def download(
    stub: ExecutorStub,
    peer: extended.HandshakeResponse,
    executor: plain.ExecutorId,
    ref: plain.ValueRef,
    type_spec: Type,
) -> object:
    """Returns the payload of a value of any size, from a stream."""
    frames = stub.download_value(extended.DownloadRequest(executor=executor, value_ref=ref))
    unpacker = Unpacker(max_bytes=_MAX_RESULT_BYTES, for_results=True)

    def read(header: extended.Download) -> object:
        return unpacker.unpack(header.value, type_spec, "result")

    return await receive(frames, extended.Download, read, unpacker, peer.heartbeat_seconds, address=stub.address)


async def receive(
    frames: AsyncGenerator[bytes, None],
    message: type[_M],
    read: Callable[[_M], _T],
    unpacker: Unpacker,
    heartbeat_seconds: float,
    spare_seconds: float = 0.0,
    on_heartbeat: Callable[[Heartbeat], None] = lambda beat: None,
    *,
    address: str,
) -> _T:
    """Receives a stream: heartbeats, a header, the bytes that belong to it.

    Args:
      frames: The stream.
      message: What its header is.
      read: Reads the header; it uses the unpacker.
      unpacker: Has the buffers for the bytes, when the header has been read.
      heartbeat_seconds: How often the peer shows that it is alive.
      spare_seconds: How much longer it may be silent than for a few of these.
      on_heartbeat: Called with each heartbeat.
      address: The peer's address, for messages.

    Returns:
      What `read` returned, when the bytes are there.

    Raises:
      DeadlineExceededError: If the peer was silent for too long.
      InvalidValueError: If it sent something else.
    """
    limit = spare_seconds + _MISSED_BEATS * max(0.1, heartbeat_seconds)  # in this order a NaN is as good as nothing
    result: _T | None = None
    reader: SegmentReader | None = None
    try:
        async for content in watch(frames, limit, who=f"the worker at {address}"):
            frame = parse_frame(content)
            if isinstance(frame, Heartbeat):
                on_heartbeat(frame)
            elif isinstance(frame, Data) and reader is not None:
                reader.feed(frame.data)
            elif isinstance(frame, Header) and reader is None:
                content = frame.content
                result = await sized(len(content), lambda content=content: read(_parsed(message, content)))
                reader = SegmentReader(unpacker.buffers)
            else:
                raise InvalidValueError(
                    f"Expected a header and then data, found a {type(frame).__name__}; the peer speaks something else"
                )
    finally:
        await frames.aclose()
    if reader is None:
        raise InvalidValueError("Expected a result, found a stream that ended without one")
    reader.finish()
    unpacker.finish()
    return cast(_T, result)


def _parsed(message: type[_M], content: bytes) -> _M:
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(f"Expected a {message.DESCRIPTOR.name}, found other bytes: {error}") from error
