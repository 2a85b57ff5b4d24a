"""Streams that were recorded, and then changed: nothing but an error of the protocol comes of them."""

import random

import numpy as np
import pytest

from fedstack.transport.stream.layout import FRAME_HEADER, HEADER_BYTES, Kind, ProtocolError
from fedstack.transport.wire.parcels import Parcel
from tests.transport.stream.two_ends import End, Recorded


def _recorded(rng: random.Random) -> list[bytes]:
    """Returns the frames of a client that makes some calls, as they were sent."""
    client, server = End(is_server=False), End(is_server=True)
    client.protocol.greet(b"client")
    frames: list[bytes] = []
    server.protocol.greet(b"server")
    for _ in range(rng.randint(1, 6)):
        size = rng.choice([0, 10, 5000, 2 << 20])
        exchange, _ = client.protocol.open(
            Recorded(), "/a/B", Parcel(b"h" * rng.randint(0, 50), [np.zeros(size, np.uint8).data]), None, lambda: None
        )
        if rng.random() < 0.3:
            client.protocol.cancel(exchange)
        sent = client.outgoing()
        frames += _cut(sent)
        server.incoming(sent)
        for taken, _ in server.calls:
            if taken.left and taken.is_open:
                server.protocol.receive(taken, [np.empty(taken.left, np.uint8).data])
        client.incoming(server.outgoing())
    sent = client.outgoing()
    return frames + _cut(sent)


def _cut(sent: bytes) -> list[bytes]:
    frames: list[bytes] = []
    while sent:
        size = HEADER_BYTES + FRAME_HEADER.unpack_from(sent)[0]
        frames.append(sent[:size])
        sent = sent[size:]
    return frames


def _changed(frames: list[bytes], rng: random.Random) -> list[bytes]:
    frames = list(frames)
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(frames))
        kind = rng.randrange(6)
        if kind == 0:
            del frames[where]
        elif kind == 1:
            frames.insert(where, frames[rng.randrange(len(frames))])
        elif kind == 2:
            frames[where] = frames[where][: rng.randrange(len(frames[where]) + 1)]
        elif kind == 3:
            frame = bytearray(frames[where])
            for _ in range(rng.randint(1, 3)):
                if frame:
                    frame[rng.randrange(min(len(frame), 48))] = rng.randrange(256)
            frames[where] = bytes(frame)
        elif kind == 4:
            length = rng.choice([0, 1, 8, 24, 1 << 20, (1 << 32) - 1])
            number = rng.choice([0, 1, 5, (1 << 64) - 1])
            head = FRAME_HEADER.pack(length, rng.randrange(20), rng.randrange(256), rng.randrange(1 << 16), number)
            frames.insert(where, head + bytes(min(length, 100)))
        else:
            frames.insert(where, FRAME_HEADER.pack(0, Kind.CANCEL, 0, 0, rng.randint(0, 8)))
        if not frames:
            break
    return frames


def _fed(frames: list[bytes], rng: random.Random, grants: float) -> int:
    """Feeds frames to a server that does what servers do; returns how many it took."""
    server = End(is_server=True)
    server.protocol.greet(b"server")
    for number, frame in enumerate(frames):
        try:
            server.incoming(frame, [rng.choice([1, 7, 100, 1 << 20]) for _ in range(5)])
        except ProtocolError:
            return number
        for exchange, events in server.calls:
            if exchange.is_open and 0 < exchange.left <= 4 << 20 and rng.random() < grants:
                server.protocol.receive(exchange, [np.empty(exchange.left, np.uint8).data])
            elif exchange.is_open and not exchange.left and exchange.room(1) is None and rng.random() < 0.5:
                server.protocol.consumed(exchange, events.parcels[0][1], more=False)
                server.protocol.send(exchange, Parcel(b"answer"), lambda: None)
                server.protocol.end(exchange)
        server.outgoing()
    assert server.protocol._window.held >= 0
    return len(frames)


def _fuzz(seeds: range, rounds: int) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        frames = _recorded(rng)
        assert _fed(frames, rng, 1.0) == len(frames)
        for _ in range(rounds):
            _fed(_changed(frames, rng), rng, 0.8)


def test_recorded_streams_that_were_changed_are_refused_or_understood() -> None:
    _fuzz(range(20), 15)


@pytest.mark.soak
def test_a_million_frames_that_were_changed_are_refused_or_understood() -> None:
    _fuzz(range(2000), 60)
