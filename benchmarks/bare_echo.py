"""Moves bytes over bare sockets: the floor of streams.

`python -m benchmarks.bare_echo ADDRESS` serves; `BareEcho` starts that in a process of its own, and calls it on the
calling thread.
"""

import socket
import struct
import subprocess
import sys
from types import TracebackType

import numpy as np

from benchmarks.memory import ROOT

_SIZE = struct.Struct("<Q")
_READY_SECONDS = 30.0


class BareEcho:
    """A process that sends back what it gets, once all of it has come.

    Args:
      path: The path of a Unix socket; empty for TCP at 127.0.0.1.
    """

    def __init__(self, path: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_echo", path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        place = self._process.stdout.readline().decode().strip()
        self._socket = socket.socket(socket.AF_UNIX) if path else socket.socket()
        self._socket.settimeout(_READY_SECONDS)
        self._socket.connect(place if path else ("127.0.0.1", int(place)))
        _tune(self._socket)

    def echo(self, content: memoryview, into: memoryview) -> None:
        """Sends bytes, and receives them into other memory."""
        self._socket.sendmsg([_SIZE.pack(len(content)), b""])
        self._socket.sendall(content)
        _receive(self._socket, into)

    def __enter__(self) -> "BareEcho":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(_READY_SECONDS)


def _tune(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)


def _receive(connection: socket.socket, into: memoryview) -> None:
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionError("The peer has closed the connection")
        into = into[count:]


def _serve(path: str) -> None:
    if path:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
    else:
        listener = socket.create_server(("127.0.0.1", 0))
    print(path or listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    _tune(connection)
    header = bytearray(_SIZE.size)
    memory = np.empty(0, np.uint8)
    while True:
        try:
            _receive(connection, memoryview(header))
        except ConnectionError:
            return
        size = _SIZE.unpack(header)[0]
        if len(memory) != size:
            memory = np.empty(size, np.uint8)
        _receive(connection, memory.data)
        connection.sendall(memory.data)


if __name__ == "__main__":
    _serve(sys.argv[1])
