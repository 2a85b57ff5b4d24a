"""Servers of the data service in one process, without a socket."""

import re
from collections.abc import Sequence

import pytest
from echo_service import ECHO, EchoService

from fedstack.errors import AddressError, ClosedError, WorkerUnavailableError
from fedstack.service.host.config import HostConfig
from fedstack.service.host.host import Host
from fedstack.service.host.listening import LOCAL, connect, is_local, local_server
from fedstack.service.host.server_thread import OwnedServer
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import Service


def host(services: Sequence[Service], port: int = 0) -> Host:
    return Host(services, HostConfig(protocol=LOCAL, port=port))


def call(target: str) -> bytes:
    async def ask() -> bytes:
        connection = connect(target)
        try:
            return await connection.unary(f"/{ECHO}/Unary", b"hello", 5)
        finally:
            await connection.close()

    return io_loop.run_sync(ask())


def test_a_local_server_answers_who_is_in_its_process_at_its_address() -> None:
    echo = EchoService()
    with OwnedServer(host([echo])) as server:
        assert is_local(server.target)
        assert call(server.target) == b"hello"
        assert local_server(server.target).services == (echo,)
    assert echo.closed


def test_a_local_server_that_has_stopped_is_not_there() -> None:
    with OwnedServer(host([EchoService()])) as server:
        target = server.target
    with pytest.raises(WorkerUnavailableError, match=f"runs no server at {re.escape(target)}"):
        call(target)
    with pytest.raises(ClosedError):
        server.start()
    assert server.join(0)


def test_a_connection_finds_a_server_that_has_come_back() -> None:
    async def look(target: str) -> bool:
        return await connect(target).look(1)

    with OwnedServer(host([EchoService()])) as server:
        target, port = server.target, int(server.target.rpartition(":")[2])
    assert not io_loop.run_sync(look(target))
    with OwnedServer(host([EchoService()], port)):
        assert io_loop.run_sync(look(target))


def test_two_local_servers_have_two_addresses() -> None:
    with OwnedServer(host([EchoService()])) as first, OwnedServer(host([EchoService()])) as second:
        assert first.target != second.target
        taken = int(first.target.rpartition(":")[2])
        with pytest.raises(AddressError, match="is in use in this process"):
            OwnedServer(host([EchoService()], taken))


def test_a_local_server_that_nothing_refers_to_stops(caplog) -> None:
    echo = EchoService()
    server = OwnedServer(host([echo]))
    hosted = server.server
    del server
    io_loop.run_sync(hosted.wait(), 5)
    assert echo.closed
    assert "it was garbage-collected" in caplog.text
