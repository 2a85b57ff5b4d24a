"""Lets go of a server's sockets in a forked child, which may outlive the server.

As long as any process has them, the address stays taken, who dials it gets no answer, and clients of a server that was
killed do not see that it is gone. They are gRPC's, which does not tell which they are; the address does.
"""

import contextlib
import os
import socket
from typing import cast

_OWN_DESCRIPTORS = "/dev/fd"  # Linux and macOS; other systems cannot fork, or let the sockets be


def let_go_of_sockets(target: str) -> None:
    """Replaces what listens at an address, and the connections that came in there, by what leads nowhere.

    They are not closed: gRPC's memory still has the numbers of their descriptors, which nothing else should get.

    Args:
      target: The address, as in `127.0.0.1:8000` or `unix:/path`.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # else to look at a socket changes it, in the parent too
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir(_OWN_DESCRIPTORS):
            if _is_at(int(name), target):
                os.dup2(nothing, int(name), inheritable=False)
        os.close(nothing)
    socket.setdefaulttimeout(timeout)


def _is_at(descriptor: int, target: str) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.type != socket.SOCK_STREAM:
                return False
            name: object = copy.getsockname()
    except OSError:  # it is no socket, or the descriptor with which we look
        return False
    if isinstance(name, tuple):
        return target.endswith(f":{cast('tuple[object, ...]', name)[1]}")
    return target == f"unix:{name}"
