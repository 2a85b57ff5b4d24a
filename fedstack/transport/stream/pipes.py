"""Moves bytes between a protocol and a socket, on an event loop."""

import abc
import array
import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from fedstack.foundations.memory_files import ReceivedFile
from fedstack.transport.stream.layout import ProtocolError
from fedstack.transport.stream.protocol import StreamProtocol

_logger = logging.getLogger(__name__)
# How often a socket is read or written before other work of the loop has its turn.
_MOST_IN_A_ROW = 8
_MOST_CALLS_IN_A_ROW = 100
# A frame comes with one file. The most that the system passes on at a time, so that this process closes all of them: a
# socket that the system closes may block the loop.
_MOST_DESCRIPTORS = 253
_FILE_SPACE = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0

# Called once, with the error that ended the connection, or with `None` if the peer has closed it.
Lost = Callable[[BaseException | None], None]


class Pipe(abc.ABC):
    """What connects a protocol to a socket.

    Attributes:
      heard: The time of the loop of the last sign of life: bytes were received, or the socket had room again.
    """

    heard: float

    @abc.abstractmethod
    def flush(self) -> None:
        """Sends as much of the queue as the socket takes now. The rest is sent when it takes more."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the socket. Idempotent."""


class SocketPipe(Pipe):
    """A pipe over a plain socket. Memory is sent and received without a copy of its own.

    Transports of asyncio are not used, because they copy what the socket does not take at once.

    Args:
      connection: A connected socket, which does not block.
      protocol: The protocol.
      lost: Called when the connection is lost.
      takes_files: Whether the peer may send files. The socket must be a Unix socket.
    """

    def __init__(
        self, connection: socket.socket, protocol: StreamProtocol, lost: Lost, *, takes_files: bool = False
    ) -> None:
        self._receive_into = self._receive_with_files if takes_files else connection.recv_into
        self._socket = connection
        self._descriptor = connection.fileno()
        self._protocol = protocol
        self._reader, self._queue = protocol.reader, protocol.queue
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._is_writing = self._is_paused = False
        self.heard = self._loop.time()
        self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        self.heard = self._loop.time()
        most = self._protocol.count + _MOST_CALLS_IN_A_ROW
        try:
            for _ in range(_MOST_IN_A_ROW):
                buffer = self._reader.buffer()
                count = self._receive_into(buffer)
                if not count:
                    self._end(None)
                    return
                self._reader.received(count)
                if count < len(buffer) or self._protocol.count > most:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ProtocolError) as error:
            self._end(error)
            return
        except Exception as error:  # the state of the connection is unknown, and no other one may suffer
            _logger.exception("A connection failed with an unexpected error")
            self._end(error)
            return
        if self._queue and not self._is_writing:
            self.flush()
        if self._protocol.is_overfull and not self._is_paused and self._descriptor >= 0:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)

    def _receive_with_files(self, buffer: memoryview) -> int:
        count, found, flags, _ = self._socket.recvmsg_into([buffer], _FILE_SPACE, socket.MSG_CMSG_CLOEXEC)
        if found or flags & socket.MSG_CTRUNC:
            received = array.array("i")
            for level, kind, content in found:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    received.frombytes(content[: len(content) - len(content) % received.itemsize])
            files = [ReceivedFile(descriptor) for descriptor in received]
            for file in files[1:]:
                file.forget()
            self._reader.file_received(files[0] if files else None)  # there is none left for this process
        return count

    def flush(self) -> None:
        if self._descriptor < 0 or self._is_writing:
            return
        try:
            for _ in range(_MOST_IN_A_ROW):
                buffers = self._queue.buffers()
                if not buffers:
                    return
                if self._queue.file is not None:
                    rights = array.array("i", [self._queue.file.descriptor])
                    count = self._socket.sendmsg(buffers, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:  # `send` is faster for one buffer
                    count = self._socket.sendmsg(buffers) if len(buffers) > 1 else self._socket.send(buffers[0])
                self._queue.sent(count)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        if self._queue and self._descriptor >= 0:
            self._is_writing = True
            self._loop.add_writer(self._descriptor, self._writable)

    def _writable(self) -> None:
        self._is_writing = False
        self.heard = self._loop.time()  # that the socket has room again is a sign of life, too
        self.flush()
        if self._descriptor < 0:
            return
        if not self._is_writing:
            self._loop.remove_writer(self._descriptor)
        if self._is_paused and not self._protocol.is_overfull:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._readable)

    def _end(self, error: BaseException | None) -> None:
        if self._descriptor >= 0:
            self._lost(error)
            self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # even if a forked child has the socket, too
            self._socket.close()

    def __repr__(self) -> str:
        return f"<SocketPipe {'closed' if self._descriptor < 0 else self._descriptor}>"


class TlsPipe(Pipe, asyncio.BufferedProtocol):
    """A pipe over a transport of asyncio, for TLS. The loop creates the transport with this object as its protocol.

    Args:
      protocol: The protocol.
      lost: Called when the connection is lost.
    """

    def __init__(self, protocol: StreamProtocol, lost: Lost) -> None:
        self._protocol = protocol
        self._reader, self._queue = protocol.reader, protocol.queue
        self._lost: Lost | None = lost
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = self._loop.time()
        try:
            self._reader.received(nbytes)
        except ProtocolError as error:
            self._end(error)
            return
        except Exception as error:
            _logger.exception("A connection failed with an unexpected error")
            self._end(error)
            return
        self.flush()
        if self._protocol.is_overfull and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.heard = self._loop.time()
        self.flush()

    def flush(self) -> None:
        transport = self._transport
        while transport is not None and not self._is_paused and not transport.is_closing():
            buffers = self._queue.buffers()
            if not buffers:
                return
            content = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            transport.write(content)  # which copies what it cannot send
            self._queue.sent(len(content))
            if not self._protocol.is_overfull:
                transport.resume_reading()  # which does nothing unless it was paused

    def _end(self, error: BaseException | None) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(error)
            self.close()

    def close(self) -> None:
        self._lost = None
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(Exception):
                transport.abort()

    def __repr__(self) -> str:
        return f"<TlsPipe{' closed' if self._transport is None else ''}>"
