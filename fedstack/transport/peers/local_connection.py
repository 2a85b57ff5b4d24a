"""Connects stubs to services in the same process, without a network."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

from fedstack.errors import ClosedError, RemoteError
from fedstack.foundations.traceback_filter import without_frames
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.methods import (
    Answers,
    DownloadMethod,
    ExchangeMethod,
    Method,
    Service,
    UnaryMethod,
    UploadMethod,
)
from fedstack.transport.wire.parcels import Parcel, Piece, incoming_of, pieces_of
from fedstack.transport.wire.status import code_of, details_of, error_from_status, message_of


class LocalConnection(Connection):
    """A connection that calls methods directly. Errors are converted to statuses and back, as over a network.

    Args:
      methods: A function that returns the methods by path, and raises an error if the server has ended.
      address: The name of the server in error messages.
    """

    def __init__(self, methods: Callable[[], Mapping[str, Method]], address: str) -> None:
        self._methods = methods
        self._address = address
        self._closed = False

    @property
    def address(self) -> str:
        """The name of the server in error messages."""
        return self._address

    def _find(self, path: str) -> Method:
        self._check_open()
        found = self._methods().get(path)
        if found is None:
            raise RemoteError(
                f"{self._address} has no method {path}; check that the server hosts this service",
                code="UNIMPLEMENTED",
            )
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"The connection to {self._address} is closed; create a new client")

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        method = self._find(path)
        assert isinstance(method, UnaryMethod)
        return await self._outcome(method.handle(request))

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        method = self._find(path)
        assert isinstance(method, UploadMethod)
        return await self._outcome(method.handle(incoming_of(parcel)))

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        method = self._find(path)
        assert isinstance(method, DownloadMethod)
        return self._answer(method.handle(request))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        method = self._find(path)
        assert isinstance(method, ExchangeMethod)
        return self._answer(method.handle(incoming_of(parcel)))

    async def _outcome(self, answer: Awaitable[bytes]) -> bytes:
        try:
            return await answer
        except asyncio.CancelledError as error:
            without_frames(error)  # Python 3.10 keeps the error in the cancelled task
            raise
        except Exception as error:
            received = self._received(error)
        try:
            raise received from received.__cause__
        finally:
            # If a service stored its error, the error would keep the frames of its traceback alive, such as this one.
            del received

    async def _answer(self, answers: Answers) -> AsyncGenerator[Piece, None]:
        try:
            async for answer in answers:
                for piece in pieces_of(answer) if isinstance(answer, Parcel) else (answer,):
                    yield piece
            return
        except asyncio.CancelledError as error:
            without_frames(error)
            raise
        except Exception as error:
            received = self._received(error)
        finally:
            if isinstance(answers, AsyncGenerator):
                await answers.aclose()
        try:
            raise received from received.__cause__
        finally:
            del received

    def _received(self, error: Exception) -> Exception:
        """Returns the error that a client would receive for `error`, without references to the service."""
        received = error_from_status(int(code_of(error)), message_of(error), details_of(error), self._address)
        without_frames(error)  # servers reached over a network do the same
        return received

    async def wait_ready(self, seconds: float) -> None:
        self._check_open()
        self._methods()

    async def close(self) -> None:
        self._closed = True


def methods_by_path(services: Iterable[Service]) -> Mapping[str, Method]:
    """Returns the methods of services by path, such as `/package.Service/Method`."""
    return {
        f"/{service_name}/{name}": method
        for service in services
        for service_name, methods in service.methods.items()
        for name, method in methods.items()
    }
