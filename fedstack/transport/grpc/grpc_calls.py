"""Makes calls of gRPC: writes and reads their streams, and turns their statuses into errors."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, cast

from fedstack.errors import (
    AuthenticationError,
    DeadlineExceededError,
    FedstackError,
    WorkerUnavailableError,
)
from fedstack.foundations.deadline import Deadline
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.connection import Connection
from fedstack.transport.wire.connection_errors import ARGUMENTS, NO_ANSWER, Words
from fedstack.transport.wire.frames import parse_frame
from fedstack.transport.wire.parcels import Piece
from fedstack.transport.wire.status import DETAILS_KEY, error_from_status

_HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
_NOT_SERVING = b"\x08\x02"  # HealthCheckResponse(status=NOT_SERVING)
_SERVICE_TAG = 1 << 3 | 2  # 2: a length and so many bytes
_ASK_SECONDS = 0.25
# What gRPC calls the end of a call that still has a message on its way, until it looks at the peer's own status.
_MAKESHIFT = "Internal error from Core"
_STATUS_SECONDS = 0.25
_LOOK_SECONDS = 0.005


async def send(call: Any, frames: Iterable[bytes]) -> None:
    """Writes a stream to its end, or to the end of the call: the status tells what was wrong."""
    try:
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    except BaseException:
        call.cancel()
        raise


async def finish(call: Any, frames: Iterable[bytes]) -> bytes:
    """Writes a stream to its end and returns the answer."""
    try:
        await send(call, frames)
        return await call
    finally:
        call.cancel()


@contextlib.asynccontextmanager
async def status_of_peer(call: Any) -> AsyncGenerator[None, None]:
    """Sees to it that a stream which the peer has ended early fails with what the peer says of it.

    A message is on its way then, and fails too. For that gRPC makes up a status, which may come before the peer's, or
    after it and in its place.
    """
    noted: list[grpc.aio.AioRpcError] = []

    def note(_: object) -> None:
        failure = _failure_of(call)
        try:
            failure.send(None)  # it is there, and so this need not wait for it
        except StopIteration as found:
            noted.append(found.value)
        finally:
            failure.close()

    call.add_done_callback(note)
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise await _status_after(failure, call, noted) from None
    finally:
        noted.clear()  # the error has frames, which have the call, which has this


async def _status_after(
    failure: grpc.aio.AioRpcError, call: Any, noted: Sequence[grpc.aio.AioRpcError]
) -> grpc.aio.AioRpcError:
    """Returns what a peer says of a call that failed, which may take a moment to be there."""
    async for attempt in Deadline(_STATUS_SECONDS).attempts(itertools.repeat(_LOOK_SECONDS)):
        if attempt:
            failure = await _failure_of(call)
        if failure.details() != _MAKESHIFT:
            break
        if noted and noted[0].details() != _MAKESHIFT:
            return noted[0]
    return failure


async def _failure_of(call: Any) -> grpc.aio.AioRpcError:
    """Returns the error of a call that has ended with one."""
    metadata = await call.initial_metadata(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(await call.code(), *metadata, await call.details())


async def raise_status(call: Any) -> None:
    """Raises the error of a call that has ended with one."""
    if await call.code() is not grpc.StatusCode.OK:
        raise await _failure_of(call)


async def failure_of_asking(connection: Connection) -> FedstackError | None:
    """Returns why a peer that is not ready answers no call, which gRPC tells to calls only; `None` if it does."""
    try:
        await connection.unary(_HEALTH, b"", _ASK_SECONDS)
    except DeadlineExceededError:
        return NO_ANSWER.error_at(connection.address)
    except (WorkerUnavailableError, AuthenticationError) as error:
        return error
    except FedstackError:
        return None
    return None


async def asks_health(connection: Connection, seconds: float | None, service: str = "") -> bool:
    """Asks the health service of a peer; see `Connection.check_alive`.

    Args:
      connection: The way to the peer.
      seconds: How long it may take; `None` for any time.
      service: The full name of one of its services, of at most 127 letters; by default all of it is meant.
    """
    # The request has one field. Its generated class is for servers, which alone may import the package that has it.
    name = service.encode()
    request = bytes([_SERVICE_TAG, len(name)]) + name if name else b""
    try:
        await connection.unary(_HEALTH, request, seconds)
    except (DeadlineExceededError, WorkerUnavailableError):
        raise
    except FedstackError:
        return False  # it answers, and knows nothing of health: gRPC's keep-alive has to do
    return True


async def until_not_serving(messages: AsyncGenerator[bytes, None]) -> None:
    """Reads what a health service says to whoever watches, until that is NOT_SERVING; see `until_draining`."""
    async with contextlib.aclosing(messages):
        try:
            async for message in messages:
                if message == _NOT_SERVING:
                    return
        except (DeadlineExceededError, WorkerUnavailableError):
            raise
        except FedstackError:  # it knows nothing of health, or has no room for those who watch
            pass
    await asyncio.Event().wait()


async def parsed(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[Piece, None]:
    """Yields what is in the frames of a stream, and closes it at the end."""
    async with contextlib.aclosing(frames):
        async for frame in frames:
            yield parse_frame(frame)


def error_of_call(failure: grpc.RpcError, address: str, words: Words = ARGUMENTS) -> Exception:
    """Returns the error that a failed call stands for; its cause is the peer's traceback, if there is one."""
    call = cast("grpc.aio.AioRpcError", failure)
    details = None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return error_from_status(int(call.code().value[0]), call.details() or "", details, address, words)
