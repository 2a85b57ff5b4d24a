"""Calls servers in tests: on the loop where all of gRPC runs, and never for longer than a wall limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from echo_service import ECHO

from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Connection, Transport
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target

WALL = 20.0
# How `call` and `connected` reach servers: a module may run its tests over both.
TRANSPORT: Transport = "grpc"


def connected(target: str, credentials: ClientCredentials | None = None) -> Connection:
    """Returns a connection over the transport of the test."""
    return FoundConnection(parse_target(target), credentials, transport=TRANSPORT)


def on_loop(work: Callable[[], Awaitable[Any]], seconds: float = WALL) -> Any:
    """Runs a test's coroutine where all of gRPC runs, within a wall limit."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work(), seconds)

    return io_loop.run_sync(bounded())


def path_of(method: str) -> str:
    return f"/{ECHO}/{method}"


def call(
    target: str,
    method: str,
    request: bytes = b"",
    timeout: float | None = WALL,
    credentials: ClientCredentials | None = None,
) -> bytes:
    """Makes one call over a connection of its own."""

    async def work() -> bytes:
        connection = connected(target, credentials)
        try:
            return await connection.unary(method if method.startswith("/") else path_of(method), request, timeout)
        finally:
            await connection.close()

    return on_loop(work)
