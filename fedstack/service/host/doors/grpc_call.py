"""Reads the messages of a gRPC call and writes its answers: messages unchanged, parcels as frames."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias, cast

from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES, sized
from fedstack.foundations.traceback_filter import without_frames
from fedstack.service.host.calls.call_table import Task
from fedstack.service.host.calls.incoming_call import IncomingCall, Route, end_answers
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.methods import Answers
from fedstack.transport.wire.frames import data_of, heartbeat_frame, parse_frame
from fedstack.transport.wire.parcels import Parcel, Piece, frames_of
from fedstack.transport.wire.status import DETAILS_KEY, Code

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


class GrpcCall(IncomingCall):
    """A call over gRPC, which the current task runs.

    Args:
      route: The route of the call.
      context: gRPC's context of the call.
      token: The token of the call, if any.

    Attributes:
      token: The token of the call, if any.
    """

    disconnected = (grpc.aio.BaseError,)

    def __init__(self, route: Route, context: Context, token: str | None) -> None:
        super().__init__(route, cast("Task", asyncio.current_task()), context.peer())
        self.token = token
        self._context = context

    @property
    def certificate(self) -> bytes:
        """The certificate of the caller (PEM); empty without one."""
        found = self._context.auth_context().get("x509_pem_cert", ())
        return next(iter(found), b"")

    async def send_parcels(self, answers: Answers) -> None:
        try:
            async for answer in answers:
                if isinstance(answer, Parcel):
                    await self._send_parcel(answer)
                else:
                    beat = heartbeat_frame(answer.done, answer.running, answer.failed, answer.work)
                    await self._write(beat)
        finally:
            await end_answers(answers)

    async def fail(self, code: Code, message: str, details: bytes | None = None) -> None:
        await abort(self._context, code, message, () if details is None else ((DETAILS_KEY, details),))

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            return None
        self.bytes_received += len(message)
        return message

    async def _write(self, message: bytes) -> None:
        self.bytes_sent += len(message)
        await self._context.write(message)

    def _pieces(self) -> AsyncIterator[Piece]:
        return _Pieces(self)

    async def _send_parcel(self, parcel: Parcel) -> None:
        frames = frames_of(parcel)
        await self._write(await sized(len(parcel.header), lambda: next(frames), LOOP_COPY_BYTES))
        for frame in frames:
            await self._write(frame)


class _Pieces:
    """The content of a call's incoming frames. Large frames are parsed on a thread."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        frame = await anext(self._frames)
        return data_of(frame) or await sized(len(frame), lambda: parse_frame(frame))


async def abort(context: Context, code: Code, message: str, metadata: Metadata = ()) -> None:
    """Ends a call with a status. gRPC completes the call when its handler returns."""
    try:
        await context.abort(grpc.StatusCode[code.name], message, metadata)
    except grpc.aio.AbortError as error:
        # gRPC's context keeps the error, whose frames would keep the context and all data of the call alive.
        without_frames(error)
