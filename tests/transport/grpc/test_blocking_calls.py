"""Calls that block: over a channel of their own, until they are closed."""

import threading
from collections.abc import Callable

import grpc
import pytest

from fedstack.errors import ClosedError, InvalidValueError
from fedstack.transport.grpc.grpc_calls import BlockingCalls
from fedstack.transport.wire.status import DETAILS_KEY

WALL = 30.0
PATH = "/a.B/C"


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, *, of_peer: bool = False) -> None:
        self.code = lambda: code
        self.trailing_metadata = lambda: ((DETAILS_KEY, b""),) if of_peer else ()


class Channel:
    """Answers as its requests say."""

    def __init__(self) -> None:
        self.come = threading.Semaphore(0)
        self.closed = threading.Event()

    def unary_unary(self, path: str) -> Callable[..., bytes]:
        return self._answer

    def _answer(self, request: bytes, timeout: float, metadata: object) -> bytes:
        if self.closed.is_set():
            raise ValueError("closed")
        if request == b"wait":
            self.come.release()
            assert self.closed.wait(WALL)
            raise Failure(grpc.StatusCode.CANCELLED)
        if request != b"answer":
            raise Failure(grpc.StatusCode.UNAVAILABLE, of_peer=request == b"busy")
        return b"answer"

    def close(self) -> None:
        self.closed.set()


class Dialled:
    """Calls, and the channels that they have opened."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.calls = BlockingCalls(self._open)

    def _open(self) -> Channel:
        self.channels.append(Channel())
        return self.channels[-1]

    def call(self, request: bytes) -> bytes:
        return self.calls.call(PATH, request, 1.0, (), "the server")

    def fail(self, request: bytes) -> None:
        with pytest.raises(grpc.RpcError):
            self.call(request)


def test_one_channel_is_dialled_and_goes_on_after_failures() -> None:
    dialled = Dialled()
    for request in (b"lost", b"busy"):
        assert dialled.call(b"answer") == b"answer"
        dialled.fail(request)
    assert len(dialled.channels) == 1


def test_closing_ends_calls() -> None:
    dialled = Dialled()
    assert dialled.call(b"answer") == b"answer"
    failed: list[grpc.RpcError] = []

    def wait() -> None:
        try:
            dialled.call(b"wait")
        except grpc.RpcError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert dialled.channels[0].come.acquire(timeout=WALL)
    dialled.calls.close()
    thread.join(WALL)
    assert [error.code() for error in failed] == [grpc.StatusCode.CANCELLED]


def test_calls_that_are_closed_say_so() -> None:
    calls = BlockingCalls(lambda: pytest.fail("nothing is dialled"))
    calls.close()
    calls.close()
    with pytest.raises(ClosedError):
        calls.call(PATH, b"", 1.0, (), "the server")
    assert repr(calls) == "<BlockingCalls closed>"


def test_what_is_wrong_with_credentials_is_not_taken_for_the_end() -> None:
    def refuse() -> grpc.Channel:
        raise InvalidValueError("no certificate")

    with pytest.raises(InvalidValueError, match="no certificate"):
        BlockingCalls(refuse).call(PATH, b"", 1.0, (), "the server")
