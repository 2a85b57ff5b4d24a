"""Calls over streams on the calling thread, with a peer that a test plays."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fedstack.errors import ClosedError, DeadlineExceededError, WorkerUnavailableError
from fedstack.proto.streams_pb2 import StreamHello, StreamWelcome
from fedstack.transport.peers.executor_stub import with_protocol
from fedstack.transport.stream import layout
from fedstack.transport.stream.blocking_streams import BlockingStreams
from fedstack.transport.stream.layout import Kind
from fedstack.transport.wire.parcels import Parcel

WALL = 20.0


class Peer:
    """The other end of the sockets: greets, and answers calls with what the test says."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self._answer = answer
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def connect(self, seconds: float) -> tuple[socket.socket, StreamHello]:
        mine, theirs = socket.socketpair()
        self._ends.append(mine)
        self._threads.append(threading.Thread(target=self._serve, args=[mine]))
        self._threads[-1].start()
        return theirs, with_protocol(StreamHello())

    @property
    def connections(self) -> int:
        return len(self._ends)

    def _serve(self, end: socket.socket) -> None:
        number = 0
        while head := end.recv(layout.HEADER_BYTES):
            size, kind, *_ = layout.FRAME_HEADER.unpack(head)
            while size:
                size -= len(end.recv(size))
            if kind == Kind.HELLO:
                end.sendall(layout.frame(Kind.HELLO, 0, with_protocol(StreamWelcome()).SerializeToString()))
            elif kind == Kind.CALL:
                number += 1
                end.sendall(self._answer(number))

    def close(self) -> None:
        for end in self._ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WALL)
        for end in self._ends:
            end.close()


def answer(number: int, content: bytes = b"answer") -> bytes:
    parcel = Parcel(content)
    buffers, _, _ = layout.parcel_frame(number, parcel, len(content))
    return b"".join(buffers) + layout.end_frame(number)


@pytest.fixture
def streams_to() -> Iterator[Callable[[Callable[[int], bytes]], tuple[BlockingStreams, Peer]]]:
    made: list[tuple[BlockingStreams, Peer]] = []

    def make(answering: Callable[[int], bytes]) -> tuple[BlockingStreams, Peer]:
        peer = Peer(answering)
        made.append((BlockingStreams("the peer", peer.connect, lambda status: KeyError(status.message)), peer))
        return made[-1]

    yield make
    for streams, peer in made:
        streams.close()
        peer.close()


def test_calls_one_after_the_other_share_a_socket(streams_to) -> None:
    streams, peer = streams_to(answer)
    for _ in range(3):
        assert streams.ask("/a/B", Parcel(b""), WALL, "the peer") == Parcel(b"answer")
    assert peer.connections == 1


def test_a_heartbeat_that_comes_with_the_answer_is_over(streams_to) -> None:
    streams, _ = streams_to(lambda number: layout.frame(Kind.HEARTBEAT, number) + answer(number))
    assert streams.ask("/a/B", Parcel(b""), WALL, "the peer") == Parcel(b"answer")


def test_the_error_of_a_call_is_raised_and_its_socket_used_again(streams_to) -> None:
    streams, peer = streams_to(lambda number: layout.end_frame(number, 5, "none") if number == 1 else answer(number))
    with pytest.raises(KeyError, match="none"):
        streams.ask("/a/B", Parcel(b""), WALL, "the peer")
    assert streams.ask("/a/B", Parcel(b""), WALL, "the peer") == Parcel(b"answer")
    assert peer.connections == 1


def test_a_peer_that_does_not_answer_in_time_costs_its_socket(streams_to) -> None:
    streams, peer = streams_to(lambda number: b"" if peer_is_silent[0] else answer(number))
    peer_is_silent = [True]
    with pytest.raises(DeadlineExceededError, match="the peer sent no message"):
        streams.ask("/a/B", Parcel(b""), 0.2, "the peer")
    peer_is_silent[0] = False
    assert streams.ask("/a/B", Parcel(b""), WALL, "the peer") == Parcel(b"answer")
    assert peer.connections == 2


def test_a_peer_that_breaks_the_protocol_is_a_lost_connection(streams_to) -> None:
    streams, _ = streams_to(lambda number: b"\xff" * 100)
    with pytest.raises(WorkerUnavailableError, match="the connection was lost"):
        streams.ask("/a/B", Parcel(b""), WALL, "the peer")


def test_after_a_failure_to_connect_the_next_call_fails_at_once() -> None:
    tried: list[float] = []

    def connect(seconds: float) -> tuple[socket.socket, StreamHello]:
        tried.append(seconds)
        raise ConnectionRefusedError("nobody")

    streams = BlockingStreams("the peer", connect, lambda status: KeyError(status.code))
    for _ in range(5):
        with pytest.raises(ConnectionError):
            streams.ask("/a/B", Parcel(b""), 0.5, "the peer")
    assert len(tried) == 1
    assert tried[0] <= 0.5
    streams.close()
    with pytest.raises(ClosedError):
        streams.ask("/a/B", Parcel(b""), 0.5, "the peer")
