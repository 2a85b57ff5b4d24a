"""Spoils requests: changes their bytes, puts their messages into a wrong order, makes them up."""

import random

import foreign_bytes as fb
from fuzz_requests import STREAMS, Request

from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.wire.frames import data_frames, heartbeat_frame


class Spoiler:
    """Spoils requests in ways that depend on the generator only."""

    def __init__(self, generator: random.Random) -> None:
        self.choose = generator

    def spoilt(self, request: Request) -> Request:
        """Returns a request in which something is wrong, most of the time."""
        frames = list(request.frames)
        if request.kind in ("upload", "exchange") and self.choose.random() < 0.4:
            self.disorder(frames)
        elif request.kind in ("upload", "exchange") and self.choose.random() < 0.7:
            header = extended.Frame.FromString(frames[0]).header
            frames[0] = extended.Frame(header=self.edited(header)).SerializeToString()
        else:
            position = self.choose.randrange(len(frames))
            frames[position] = self.edited(frames[position])
        return Request(request.method, frames)

    def disorder(self, frames: list[bytes]) -> None:
        """Puts the frames of a stream into a wrong order, or takes some away, or adds others."""
        what = self.choose.randrange(7)
        if what == 0:
            frames.reverse()
        elif what == 1:
            del frames[self.choose.randrange(len(frames))]
        elif what == 2:
            frames.append(self.choose.choice(frames))
        elif what == 3:
            frames.insert(self.choose.randrange(len(frames) + 1), heartbeat_frame(1, 2, 3))
        elif what == 4:
            frames.insert(self.choose.randrange(len(frames) + 1), b"")
        elif what == 5:
            frames.extend(data_frames([memoryview(self.choose.randbytes(self.choose.randrange(1, 5000)))]))
        else:
            frames.clear()

    def edited(self, content: bytes) -> bytes:
        """Returns bytes with some of them changed."""
        raw = bytearray(content)
        for _ in range(self.choose.randint(1, 4)):
            at = self.choose.randrange(len(raw) + 1)
            what = self.choose.randrange(7)
            if what == 0 and at < len(raw):
                raw[at] = self.choose.randrange(256)
            elif what == 1 and at < len(raw):
                raw[at] ^= 1 << self.choose.randrange(8)
            elif what == 2:
                raw[at:at] = self.choose.randbytes(self.choose.randrange(1, 9))
            elif what == 3:
                del raw[at : at + self.choose.randrange(1, 9)]
            elif what == 4:
                del raw[at:]
            elif what == 5:
                raw[at : at + 1] = fb.varint(self.choose.choice([2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            else:
                begin = self.choose.randrange(len(raw) + 1)
                raw[at:at] = raw[begin : begin + self.choose.randrange(1, 60)]
        return bytes(raw)

    def garbage(self, method: str) -> Request:
        count = self.choose.choice([0, 1, 3]) if STREAMS.get(method) in ("upload", "exchange") else 1
        sizes = [self.choose.choice([0, 1, 2, 10, 100, 5000]) for _ in range(count)]
        return Request(method, [self.choose.randbytes(size) for size in sizes])
