"""The server of the page of metrics: what it answers, and what slow and broken clients can do to it."""

import http.client
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from await_until import await_until

from fedstack import errors
from fedstack.service.host import metrics_page
from fedstack.service.host.metrics_page import PageServer

LIMIT = 20.0
PAGE = b"a_metric 1\n"


class Page:
    """Makes a page that the test chooses."""

    content = PAGE
    error: Exception | None = None

    def __call__(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self.content


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def server(page: Page) -> Iterator[PageServer]:
    found = PageServer(page, "text/plain", "127.0.0.1", 0)
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


def test_the_page_is_there(server: PageServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert server.url.endswith("/metrics")
    assert ask(server) == (200, PAGE)


def test_a_head_has_no_body(server: PageServer) -> None:
    found = sent(server, b"HEAD /metrics HTTP/1.1\r\na: b\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(PAGE) in found
    assert found.endswith(b"\r\n\r\n")


def test_there_is_no_other_page_and_nothing_to_write(server: PageServer) -> None:
    assert ask(server, path="/") == (404, b"The only page of this server is /metrics\n")
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
        b"GET /metrics?\xff HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: \xff\r\n\r\n",
    ],
    ids=range(11),
)
def test_garbage_is_refused_and_does_no_harm(
    garbage: bytes, server: PageServer, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(address(server), LIMIT) as connection:
        try:
            connection.sendall(garbage)
            answer = all_of(connection)
        except ConnectionError:  # it does not read to the end of what is too long
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert not caplog.records
    assert ask(server)[0] == 200


def test_a_client_that_leaves_does_no_harm(server: PageServer) -> None:
    for data in (b"", b"GET /metrics", b"GET /metrics?much HTTP/1.1\r\na: b\r\n\r\n"):
        with socket.create_connection(address(server), LIMIT) as connection:
            connection.sendall(data)
    assert ask(server)[0] == 200


def test_a_client_that_says_nothing_or_does_not_read_is_left(
    server: PageServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.content = PAGE * 5_000_000
    monkeypatch.setattr(metrics_page, "SECONDS", 0.3)
    assert sent(server, b"") == b""
    assert sent(server, b"GET /metrics HTTP/1.1\r\n") == b""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LIMIT)
        connection.connect(address(server))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert connection.recv(1)
        await_until(lambda: not server._open)  # the whole point: it does not read on
        assert len(all_of(connection)) < 50_000_000
    page.content = PAGE
    assert ask(server)[0] == 200


def test_slow_clients_make_way_for_others(server: PageServer) -> None:
    slow = [socket.create_connection(address(server), LIMIT) for _ in range(metrics_page.MOST_CONNECTIONS + 20)]
    try:
        assert ask(server) == (200, PAGE)
        assert slow[0].recv(1) == b""
        assert len(server._open) <= metrics_page.MOST_CONNECTIONS
    finally:
        for connection in slow:
            connection.close()


def test_nothing_that_a_client_says_goes_into_the_page(server: PageServer) -> None:
    assert ask(server, path="/metrics?name[]=%ff&%00") == (200, PAGE)


def test_a_page_that_cannot_be_made_is_logged_once(
    server: PageServer, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    page.error = RuntimeError("no page")
    assert [ask(server)[0] for _ in range(10)] == [500] * 10
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    page.error = None
    assert ask(server)[0] == 200


def test_a_taken_port_is_an_error_that_says_so(server: PageServer) -> None:
    host, port = address(server)
    with pytest.raises(errors.AddressError, match=f"Port {port} of 127.0.0.1 is in use; stop the process that"):
        PageServer(Page(), "text/plain", host, port).start()


def test_a_server_that_stops_ends_connections_and_its_thread() -> None:
    server = PageServer(Page(), "text/plain", "localhost", 0)
    server.start()
    with socket.create_connection(address(server), LIMIT) as connection:
        assert ask(server)[0] == 200  # so the connection before has come, too
        server.stop()
        server.stop()
        assert all_of(connection) == b""
    with pytest.raises(ConnectionError):
        ask(server)
    assert "fedstack-metrics" not in {thread.name for thread in threading.enumerate()}
