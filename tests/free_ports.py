"""Finds ports at which servers of tests listen later, or again: no other test is given one meanwhile."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _DEFAULT_END = 20_000, 32_768  # below are ports that Ray takes
_chance = random.SystemRandom()  # Hypothesis seeds the other


def free_port() -> int:
    """Returns a port at which nobody listens, none of those that the system gives to whoever asks for any."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _DEFAULT_END
    while True:
        port = _chance.randrange(_FIRST, max(end, _DEFAULT_END))
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
