"""The server of the page of metrics: what it answers, and what slow and broken clients can do to it."""

import http.client
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from await_until import await_until

from fedstack import errors
from fedstack.service.metrics import page_server
from fedstack.service.metrics.page_server import PageServer

LIMIT = 20.0
Message = dict[str, Any]


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["query_string"] == b"fail":
        raise RuntimeError("no page")
    assert (await receive())["type"] == "http.request"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"text/plain")]})
    lines = [b"%s: %s\n" % header for header in scope["headers"]]
    await send({"type": "http.response.body", "body": b"".join(lines) * (100_000 if scope["query_string"] else 1)})


@pytest.fixture
def server() -> Iterator[PageServer]:
    found = PageServer(application, "127.0.0.1", 0)
    found.start()
    yield found
    found.stop()


def address(server: PageServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition("/")[0].rpartition(":")
    return host, int(port)


def ask(server: PageServer, method: str = "GET", path: str = "/metrics") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address(server), timeout=LIMIT)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Accept", "all: of it")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def sent(server: PageServer, data: bytes) -> bytes:
    """Sends bytes; returns all that comes back until the server ends the connection."""
    with socket.create_connection(address(server), LIMIT) as connection:
        connection.sendall(data)
        return all_of(connection)


def all_of(connection: socket.socket) -> bytes:
    found = b""
    try:
        while more := connection.recv(65_536):
            found += more
    except ConnectionResetError:
        pass
    return found


def test_the_page_is_there_with_what_the_client_said(server: PageServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert server.url.endswith("/metrics")
    assert ask(server) == (200, b"accept: all: of it\n")


def test_a_head_has_no_body(server: PageServer) -> None:
    found = sent(server, b"HEAD /metrics HTTP/1.1\r\na: b\r\n\r\n")
    assert b"Content-Length: 5\r\n" in found
    assert found.endswith(b"\r\n\r\n")


def test_there_is_no_other_page_and_nothing_to_write(server: PageServer) -> None:
    assert ask(server, path="/") == (404, b"There is one page here: /metrics\n")
    assert ask(server, "POST") == (405, b"This page can only be read.\n")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500 + b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nlong: " + b"x" * 100_000 + b"\r\n\r\n",
        b"x" * 1_000_000,
    ],
    ids=range(9),
)
def test_garbage_is_refused_and_does_no_harm(garbage: bytes, server: PageServer) -> None:
    with socket.create_connection(address(server), LIMIT) as connection:
        try:
            connection.sendall(garbage)
            answer = all_of(connection)
        except ConnectionError:  # it does not read to the end of what is too long
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert ask(server)[0] == 200


def test_a_client_that_leaves_does_no_harm(server: PageServer) -> None:
    for data in (b"", b"GET /metrics", b"GET /metrics?much HTTP/1.1\r\na: b\r\n\r\n"):
        with socket.create_connection(address(server), LIMIT) as connection:
            connection.sendall(data)
    assert ask(server)[0] == 200


def test_a_client_that_says_nothing_or_does_not_read_is_left(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "SECONDS", 0.3)
    assert sent(server, b"") == b""
    assert sent(server, b"GET /metrics HTTP/1.1\r\n") == b""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LIMIT)
        connection.connect(address(server))
        connection.sendall(b"GET /metrics?much HTTP/1.1\r\na: " + b"x" * 500 + b"\r\n\r\n")
        assert connection.recv(1)
        await_until(lambda: not server._open)  # the whole point: it does not read on
        assert len(all_of(connection)) < 50_000_000
    assert ask(server)[0] == 200


def test_slow_clients_make_way_for_others(server: PageServer) -> None:
    slow = [socket.create_connection(address(server), LIMIT) for _ in range(page_server.MOST_CONNECTIONS + 20)]
    try:
        assert ask(server) == (200, b"accept: all: of it\n")
        assert slow[0].recv(1) == b""
        assert len(server._open) <= page_server.MOST_CONNECTIONS
    finally:
        for connection in slow:
            connection.close()


def test_a_page_that_cannot_be_made_is_logged(server: PageServer, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(server, path="/metrics?fail")[0] == 500
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert ask(server)[0] == 200


def test_a_taken_port_is_an_error_that_says_so(server: PageServer) -> None:
    host, port = address(server)
    with pytest.raises(errors.AddressError, match=f"Port {port} of 127.0.0.1 is in use; stop what listens there, or"):
        PageServer(application, host, port).start()


def test_a_server_that_stops_ends_connections_and_its_thread() -> None:
    server = PageServer(application, "localhost", 0)
    server.start()
    with socket.create_connection(address(server), LIMIT) as connection:
        assert ask(server)[0] == 200  # so the connection before has come, too
        server.stop()
        server.stop()
        assert all_of(connection) == b""
    with pytest.raises(ConnectionError):
        ask(server)
    assert "fedstack-metrics" not in {thread.name for thread in threading.enumerate()}
