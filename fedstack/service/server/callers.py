"""Tells whose call it is, as far as that can be told: by its token, or else by the address that it comes from."""

import functools
import hashlib
import ipaddress
import re
from urllib.parse import unquote

from fedstack.service.server.fair_shares import NOBODY

# What gRPC calls a peer ends in the port that it dials from, and each connection has another one.
_PORT = re.compile(r"(?<=[\d\]]):\d+$")
# Of IPv6 a household has as many addresses as it likes.
_NETWORK_BITS = 64


def host_of(peer: str) -> str:
    """Returns what gRPC calls a peer (`ipv4:10.0.0.1:50000`) without the port."""
    return _PORT.sub("", unquote(peer))


@functools.lru_cache(maxsize=4096)
def caller_at(peer: str) -> str:
    """Returns the name of whoever calls from an address; `NOBODY` where all who do share it."""
    kind, _, host = host_of(peer).partition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return NOBODY
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False)
            return NOBODY if address.is_loopback else f"{kind}:{network}"
        address = address.ipv4_mapped
    return NOBODY if address.is_loopback else f"ipv4:{address}"


def caller_with(token: str) -> str:
    """Returns the name of whoever has a token; it does not show the token."""
    return f"token:{hashlib.sha256(token.encode()).hexdigest()[:16]}"
