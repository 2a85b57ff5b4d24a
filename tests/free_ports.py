"""Finds ports at which servers of tests listen later, or again: no other test is given one meanwhile."""

import itertools
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _DEFAULT_END = 20_000, 32_768  # below are ports that Ray takes
_END = max(_DEFAULT_END, int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0)
# Each process goes round from a place of its own, so that it comes late to what it, or another one, has let go of.
_ports = itertools.cycle(range(_FIRST, _END))
next(itertools.islice(_ports, random.SystemRandom().randrange(_END - _FIRST), None))


def free_port() -> int:
    """Returns a port at which nobody listens, none of those that the system gives to whoever asks for any.

    Clients dial the port of a server that has died for a while. If the system gives that to another test, they come to
    that as strangers, or wait for a greeting that does not come.
    """
    for port in _ports:
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there are always more")
