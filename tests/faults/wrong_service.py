"""Services that are right but for what a test makes wrong."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.proto import extensions_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS
from fedstack.transport.peers.methods import (
    Answers,
    DownloadMethod,
    ExchangeMethod,
    Method,
    Service,
    StreamMethod,
    UnaryMethod,
)
from fedstack.transport.wire.frames import Header, header_frame, heartbeat_frame, parse_frame
from fedstack.transport.wire.parcels import Incoming, Parcel, Piece, frames_of

Frames = AsyncIterator[bytes]


class WrongService(Service):
    """An executor service with other methods in place of some of its own.

    Args:
      methods: Makes the other method out of the right one, by its name.
      **limits: As of `ServiceLimits`.
    """

    def __init__(self, methods: Mapping[str, Callable[[Method], Method]], **limits: Any) -> None:
        limits = {"heartbeat_seconds": 0.25, **limits}
        self.service = ExecutorService(
            fedstack.local_executor_factory(),
            limits=ServiceLimits(**limits),
            policy=CarrierPolicy(modules=["*"], python_code=True),
        )
        self._methods = {group: dict(found) for group, found in self.service.methods.items()}
        for name, make in methods.items():
            group = self._methods[EXTENSIONS if name in self._methods[EXTENSIONS] else EXECUTOR_GROUP]
            group[name] = make(group[name])

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return self._methods

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        return self.service.descriptors

    async def close(self) -> None:
        await self.service.close()


@contextlib.contextmanager
def served(service: Any) -> Iterator[str]:
    """Serves over gRPC in this process, since what is wrong is wrong in its frames; yields the address."""
    with ServerThread(GrpcServer([service], streams=False)) as server:
        yield server.target


def unary(answer: Callable[[bytes], bytes]) -> Callable[[Method], Method]:
    """Returns what makes a method whose answer is made of the right one."""

    def make(right: Method) -> Method:
        assert isinstance(right, UnaryMethod)

        async def handle(request: bytes) -> bytes:
            return answer(await right.handle(request))

        return UnaryMethod(handle)

    return make


def raising(error: Callable[[], Exception]) -> Callable[[Method], Method]:
    """Returns what makes a method that always fails."""

    async def fail() -> bytes:
        raise error()

    async def fail_stream() -> Answers:
        raise error()
        yield Parcel(b"")

    def make(right: Method) -> Method:
        if isinstance(right, (DownloadMethod, ExchangeMethod)):
            return type(right)(lambda request: fail_stream())
        return type(right)(lambda request: fail())

    return make


def frames_in_answer(right: Method) -> Callable[[Frames], Frames]:
    """Returns what answers with the frames of the right method."""

    async def pieces(frames: Frames) -> AsyncIterator[Piece]:
        async for frame in frames:
            yield parse_frame(frame)

    async def handle(requests: Frames) -> Frames:
        if isinstance(right, ExchangeMethod):
            answers = right.handle(Incoming(pieces(requests)))
        else:
            assert isinstance(right, DownloadMethod)
            answers = right.handle(await anext(requests))
        async for answer in answers:
            if isinstance(answer, Parcel):
                for frame in frames_of(answer):
                    yield frame
            else:
                yield heartbeat_frame(answer.done, answer.running, answer.failed, answer.work)

    return handle


def stream(change: Callable[[Sequence[bytes]], Sequence[bytes]]) -> Callable[[Method], Method]:
    """Returns what makes a method that answers with other frames than the right one, heartbeats aside."""

    def make(right: Method) -> Method:
        async def handle(requests: Frames) -> Frames:
            for frame in change([frame async for frame in frames_in_answer(right)(requests)]):
                yield frame

        return StreamMethod(handle)

    return make


def phase_response(change: Callable[[extensions_pb2.PhaseResponse], object]) -> Callable[[Method], Method]:
    """Returns what makes RunPhase answer with another message than the right one."""

    def change_header(frames: Sequence[bytes]) -> Sequence[bytes]:
        changed: list[bytes] = []
        for content in frames:
            frame = parse_frame(content)
            if isinstance(frame, Header):
                response = extensions_pb2.PhaseResponse.FromString(frame.content)
                change(response)
                content = header_frame(response.SerializeToString())
            changed.append(content)
        return changed

    return stream(change_header)
