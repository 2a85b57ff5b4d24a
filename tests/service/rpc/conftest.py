"""A server with methods, and a client of it."""

import asyncio

import pytest
from served_methods import WALL, Gate, register_all

from fedstack.service import rpc
from fedstack.transport.peers.io_loop import io_loop


@pytest.fixture(scope="session", autouse=True)
def started_loop(grpc_is_up: None) -> None:
    """The loop's thread, and gRPC's, are there for the whole process."""
    io_loop.run_sync(asyncio.sleep(0))


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def server(gate):
    server = rpc.Server.create("grpc", "localhost:0")
    register_all(server, gate)
    with server:
        yield server
        gate.opened.set()


@pytest.fixture
def client(server):
    with rpc.Client.create("grpc", server.target, timeout_in_ms=WALL * 1000) as client:
        yield client
