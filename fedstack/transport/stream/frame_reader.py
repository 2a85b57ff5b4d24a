"""Cuts the bytes that a socket receives into frames. Data are received directly into the memory of their receiver."""

import abc
from collections import deque

import numpy as np

from fedstack.foundations.memory_files import ReceivedFile
from fedstack.transport.stream.layout import (
    FRAME_HEADER,
    HEADER_BYTES,
    MOST_DATA_BYTES,
    Kind,
    ProtocolError,
)

# Many small frames fit, so that one read of the socket receives them together. The part of a large frame that is read
# with its header is copied, which is a small part of it. A server has as much for each of thousands of connections.
_SCRATCH_BYTES = 16 << 10
# Strangers may send no more in a frame.
_FIRST_BYTES = 16 << 10
# More files do not arrive ahead of the frames that they belong to.
_MOST_FILES = 4
_DATA = int(Kind.DATA)


class FrameSink(abc.ABC):
    """What receives the frames."""

    @abc.abstractmethod
    def frame(self, kind: int, flags: int, number: int, exchange: int, payload: bytes | memoryview) -> None:
        """Takes a frame that is not a data frame. A `memoryview` is the only reference to its memory."""

    @abc.abstractmethod
    def room(self, exchange: int, size: int) -> memoryview | None:
        """Returns memory for the next bytes of data, of at most `size` bytes; `None` if they are not wanted."""

    @abc.abstractmethod
    def progressed(self, exchange: int) -> None:
        """Called when some bytes have been written to the memory that `room` returned, but not all."""

    @abc.abstractmethod
    def filled(self, exchange: int, size: int) -> None:
        """Called when `size` bytes have been written to the memory that `room` returned."""


class FrameReader:
    """Tells a socket where to write the bytes that it receives, and passes complete frames to a sink.

    The caller repeatedly receives bytes into `buffer()`, and calls `received()` with their number.

    Args:
      sink: What receives the frames.

    Attributes:
      most_bytes: The maximum size of a frame, except of data. It is small until the peer has introduced itself.
    """

    def __init__(self, sink: FrameSink) -> None:
        self.most_bytes = _FIRST_BYTES
        self._sink = sink
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = self._end = 0  # the bytes of the scratch memory that are not parsed yet
        # Where the next bytes of a large frame are written, instead of the scratch memory.
        self._target: memoryview | None = None
        self._payload: memoryview | None = None  # the payload of which `_target` is the rest; `None` for data
        self._head = (0, 0, 0, 0)  # kind, flags, number and exchange of the frame of `_target`
        self._missing = 0  # the number of bytes of a data frame that are still to be received
        self._room_bytes = 0  # the size of the memory that the sink has returned last
        self._is_unwanted = False
        self._files: deque[ReceivedFile | None] = deque()

    def buffer(self) -> memoryview:
        """Returns the memory for the next bytes. It is never empty."""
        return self._view[self._end :] if self._target is None else self._target

    def received(self, count: int) -> None:
        """Parses the bytes that were written to `buffer()`.

        Raises:
          ProtocolError: If they are not frames.
        """
        target = self._target
        if target is None:
            self._end += count
        elif count < len(target):
            self._target = target[count:]
            if self._payload is None and not self._is_unwanted:
                self._sink.progressed(self._head[3])
            return
        else:
            self._target = None
            if self._payload is None:
                self._data_received()
            else:
                payload, self._payload = self._payload, None
                self._sink.frame(*self._head, payload)
        if self._target is None:
            self._parse()

    def file_received(self, file: ReceivedFile | None) -> None:
        """Takes a file of the peer. The frame to which it belongs follows, or has begun.

        Args:
          file: The file; `None` if it could not be received.

        Raises:
          ProtocolError: If there are too many files.
        """
        self._files.append(file)
        if len(self._files) > _MOST_FILES:
            raise ProtocolError(f"Expected frames for {_MOST_FILES} files, found further files")

    def drop_files(self) -> None:
        """Closes the files whose frames have not come. Called when the connection has ended."""
        while self._files:
            file = self._files.popleft()
            if file is not None:
                file.forget()

    def file(self) -> ReceivedFile | None:
        """Returns the file of the frame that was received last; `None` if it could not be received.

        Raises:
          ProtocolError: If no file has come with it.
        """
        if not self._files:
            raise ProtocolError("Expected a file with a frame, found none")
        return self._files.popleft()

    def _data_received(self) -> None:
        """Passes on data for which the whole room is filled, and continues with the rest of the frame."""
        self._missing -= self._room_bytes
        if not self._is_unwanted:
            self._sink.filled(self._head[3], self._room_bytes)
        self._read_data()

    def _read_data(self) -> None:
        """Moves data from the scratch memory to their receiver, and lets the socket write the rest there."""
        exchange = self._head[3]
        while self._missing:
            room = self._sink.room(exchange, self._missing)
            self._is_unwanted = room is None
            if room is None:
                here = min(self._missing, self._end - self._start)
                self._start += here
                self._missing -= here
                if self._missing:
                    self._drop_next()
                    return
                continue
            self._room_bytes = len(room)
            here = min(len(room), self._end - self._start)
            if here:
                room[:here] = self._view[self._start : self._start + here]
                self._start += here
            if here < len(room):
                self._start = self._end = 0
                self._target = room[here:]
                return
            self._missing -= here
            self._sink.filled(exchange, here)

    def abandon(self, exchange: int) -> None:
        """Writes nothing more to the memory that the sink has returned for an exchange. The rest is dropped."""
        target = self._target
        if target is None or self._payload is not None or self._is_unwanted or self._head[3] != exchange:
            return
        self._missing -= self._room_bytes - len(target)
        self._is_unwanted = True
        self._drop_next()

    def _drop_next(self) -> None:
        """Lets the socket write unwanted data to the scratch memory, which is empty."""
        self._start = self._end = 0
        self._room_bytes = min(self._missing, _SCRATCH_BYTES)
        self._target = self._view[: self._room_bytes]

    def _parse(self) -> None:
        while self._end - self._start >= HEADER_BYTES:
            length, kind, flags, number, exchange = FRAME_HEADER.unpack_from(self._scratch, self._start)
            begin = self._start + HEADER_BYTES
            if kind == _DATA:
                if length > MOST_DATA_BYTES:
                    raise _too_long(length, MOST_DATA_BYTES)
                self._start, self._missing = begin, length
                self._head = kind, flags, number, exchange
                self._read_data()
                if self._target is not None:
                    return
                continue
            if length > self.most_bytes:
                raise _too_long(length, self.most_bytes)
            end = begin + length
            if end <= self._end:
                self._start = end
                self._sink.frame(kind, flags, number, exchange, bytes(self._view[begin:end]))
            elif HEADER_BYTES + length <= _SCRATCH_BYTES:
                break  # the rest fits into the scratch memory
            else:
                self._receive_large(kind, flags, number, exchange, begin, length)
                return
        self._make_space()

    def _receive_large(self, kind: int, flags: int, number: int, exchange: int, begin: int, length: int) -> None:
        payload = np.empty(length, np.uint8).data
        here = self._end - begin
        payload[:here] = self._view[begin : self._end]
        self._start = self._end = 0
        self._head = kind, flags, number, exchange
        self._payload, self._target = payload, payload[here:]

    def _make_space(self) -> None:
        """Moves an incomplete frame to the start of the scratch memory, unless there is space behind it."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > _SCRATCH_BYTES // 2 or self._end == _SCRATCH_BYTES:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def __repr__(self) -> str:
        waiting = self._end - self._start if self._target is None else len(self._target)
        return f"<FrameReader, {waiting} bytes {'here' if self._target is None else 'missing'}>"


def _too_long(length: int, most: int) -> ProtocolError:
    return ProtocolError(
        f"Expected frames of at most {most} bytes, found one of {length} bytes; check that the peer speaks this "
        "protocol"
    )
