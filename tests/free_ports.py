"""Finds ports at which servers of tests listen later, or again: no other test is given one meanwhile."""

import contextlib
import importlib
import itertools
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _DEFAULT_END = 20_000, 32_768  # below are ports that Ray takes
_END = max(_DEFAULT_END, int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0)
_PARTS = 32


def _own_part() -> Sequence[int]:
    """Returns ports that no other process of tests looks at, as long as this one lives; all where none is left.

    The file that says so stays open, and locked, until the process ends.
    """
    size = (_END - _FIRST) // _PARTS
    with contextlib.suppress(ImportError):
        fcntl = importlib.import_module("fcntl")  # not on Windows
        for part in random.SystemRandom().sample(range(_PARTS), _PARTS):
            lock = os.open(Path(tempfile.gettempdir(), f"fedstack-tests-ports-{part}"), os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            return range(_FIRST + part * size, _FIRST + (part + 1) * size)
    return range(_FIRST, _END)


# A process goes round from a place of its own, so that it comes late to what it, or one before it, has let go of.
_part = _own_part()
_ports = itertools.cycle(_part)
next(itertools.islice(_ports, random.SystemRandom().randrange(len(_part)), None))


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
