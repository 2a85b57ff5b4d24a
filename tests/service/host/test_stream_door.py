"""The door for streams: who is let in, as whom, and what does not take it down."""

import asyncio
import contextlib
import gc
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from calling import WALL, on_loop, path_of
from echo_service import EchoService, parcel_of

from fedstack.command_line.certificates import CertificateFiles
from fedstack.errors import (
    AddressError,
    AuthenticationError,
    DeadlineExceededError,
    ResourceLimitError,
    WorkerUnavailableError,
)
from fedstack.proto.streams_pb2 import OpenStreamRequest, OpenStreamResponse, StreamHello
from fedstack.service.host.doors.stream_door import StreamDoor, place_of
from fedstack.service.host.doors.tickets import StreamOwner, Tickets
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import with_protocol
from fedstack.transport.stream import layout
from fedstack.transport.stream.dialing import OPEN_STREAM, SOCKET_SUFFIX, client_security, dial
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.stream.layout import Kind
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.parcels import Incoming, Parcel, Piece


@contextlib.contextmanager
def serving(*, service: EchoService | None = None, **options: Any) -> Iterator[GrpcServer]:
    with ServerThread(GrpcServer([service or EchoService()], **options)) as thread:
        yield cast(GrpcServer, thread.server)


@contextlib.asynccontextmanager
async def dialled(
    server: GrpcServer, credentials: ClientCredentials | None = None, transport: Any = "stream"
) -> AsyncIterator[FoundConnection]:
    connection = FoundConnection(parse_target(server.url), credentials, transport=transport)
    connection._transport = transport  # even if the tests run over gRPC
    try:
        yield connection
    finally:
        await connection.close()


async def ticket_of(server: GrpcServer, credentials: ClientCredentials | None = None) -> OpenStreamResponse:
    connection = GrpcConnection(parse_target(server.url), credentials)
    try:
        request = with_protocol(OpenStreamRequest()).SerializeToString()
        return OpenStreamResponse.FromString(await connection.unary(OPEN_STREAM, request, WALL))
    finally:
        await connection.close()


def door_of(server: GrpcServer) -> StreamDoor:
    return server._streams


async def received(pieces: AsyncIterator[Piece]) -> bytes:
    """Returns the content of a parcel that is received."""
    incoming = Incoming(pieces, on_heartbeat=lambda beat: None)
    memory = np.empty(int(await incoming.header()), np.uint8)
    await incoming.read_into([memory.data])
    return memory.tobytes()


def test_calls_of_every_kind_go_over_a_stream_and_are_counted_as_over_grpc() -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8)

    async def work() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"hello", WALL) == b"hello"
            assert await connection.unary(path_of("Unary"), bytes(3 << 20), WALL) == bytes(3 << 20)
            for size in (10, 1 << 20, 3 << 20):
                sent = content[:size].tobytes()
                assert await connection.upload(path_of("Upload"), parcel_of(sent), WALL) == sent
                assert await received(connection.exchange(path_of("Exchange"), parcel_of(sent))) == sent
            assert await received(connection.download(path_of("Download"), b"what")) == b"what"
            assert await connection.check_alive(WALL)
            assert not connection.why_grpc

    with serving() as server:
        on_loop(work)
        counts = {(name.rpartition("/")[2], code): count for name, code, count in server.call_counts}
        assert counts["Unary", "OK"] == 2
        assert counts["Exchange", "OK"] == 3
        assert counts["Open", "OK"] == 1


def test_errors_are_those_of_grpc() -> None:
    async def failures(transport: str) -> list[tuple[type, str]]:
        found: list[tuple[type, str]] = []
        async with dialled(server, transport=transport) as connection:
            for path, request, seconds in (
                (path_of("Fail"), b"", WALL),
                (path_of("Missing"), b"", WALL),
                ("/no.such.Service/Method", b"", WALL),
                (path_of("Hold"), b"", 0.1),
            ):
                with pytest.raises(Exception, match=".") as caught:
                    await connection.unary(path, request, seconds)
                found.append((type(caught.value), str(caught.value)))
        return found

    with serving() as server:
        over_grpc, over_stream = on_loop(lambda: failures("grpc")), on_loop(lambda: failures("stream"))
        assert over_grpc == over_stream
        assert over_grpc[-1][0] is DeadlineExceededError


def test_a_call_that_its_client_gives_up_ends_at_the_server() -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            call = asyncio.ensure_future(connection.unary(path_of("Hold"), b"", None))
            await service.entered.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await service.done.wait()
            assert await connection.unary(path_of("Unary"), b"next", WALL) == b"next"

    service = EchoService()
    with serving(service=service) as server:
        on_loop(work)


def test_a_time_limit_ends_the_call_at_the_server_too() -> None:
    async def work() -> None:
        response = await ticket_of(server)
        hello = with_protocol(StreamHello(ticket=response.ticket))
        stream = await dial(("127.0.0.1", response.port), hello, "the server", WALL)
        exchange = stream.open(path_of("Hold"), Parcel(b""), 0.2, lambda status: KeyError(status.code))
        with pytest.raises(KeyError, match="4"):
            await exchange.next()
        await service.done.wait()
        stream.close()

    service = EchoService()
    with serving(service=service) as server:
        on_loop(work)


@pytest.mark.parametrize("which", ["none", "made up", "used", "cut short", "of another host", "late"])
def test_a_stream_needs_a_ticket_of_its_own(which: str) -> None:
    async def work() -> None:
        response = await ticket_of(server)
        ticket, where = response.ticket, ("127.0.0.1", response.port)
        tickets = door_of(server)._tickets
        if which == "none":
            ticket = b""
        elif which == "made up":
            ticket = ticket[:16] + secrets.token_bytes(16)
        elif which == "cut short":
            ticket = ticket[:20]
        elif which == "used":
            stream = await dial(where, with_protocol(StreamHello(ticket=ticket)), "the server", WALL)
            stream.close()
        elif which == "of another host":
            ticket = tickets.issue(StreamOwner("ipv4:192.0.2.1"))
        else:
            tickets._clock = lambda: 1e12
        with pytest.raises(WorkerUnavailableError, match="Expected a ticket for a stream"):
            await dial(where, with_protocol(StreamHello(ticket=ticket)), "the server", WALL)
        assert door_of(server).connections <= 1

    with serving() as server:
        on_loop(work)


def test_tickets_that_nobody_uses_are_not_kept_without_bound() -> None:
    now = 0.0
    tickets = Tickets(lambda: now)
    first = tickets.issue(StreamOwner("here"))
    for _ in range(20_000):
        tickets.issue(StreamOwner("here"))
    assert len(tickets._issued) <= 10_000
    assert tickets.use(first, "here", b"") is None
    now = 60.0
    tickets.issue(StreamOwner("here"))
    assert len(tickets._issued) == 1


@pytest.mark.parametrize(
    ("over_grpc", "over_stream", "is_same"),
    [
        ("ipv4:127.0.0.1:50000", "ipv6:[::1]:60000", True),
        ("ipv6:[::ffff:127.0.0.1]:50000", "ipv4:127.0.0.2:60000", True),
        ("ipv6:%5B::ffff:10.0.0.5%5D:50000", "ipv4:10.0.0.5:60000", True),
        ("ipv4:10.0.0.5:50000", "ipv4:10.0.0.6:60000", False),
        ("ipv6:[2001:db8::1]:50000", "ipv6:[2001:db8:0::1]:60000", True),
        ("unix:", "ipv4:127.0.0.1:60000", False),
    ],
)
def test_a_host_is_the_same_however_it_is_named(over_grpc: str, over_stream: str, is_same: bool) -> None:
    assert (place_of(over_grpc) == place_of(over_stream)) is is_same


def test_a_ticket_is_good_for_one_certificate_only() -> None:
    tickets = Tickets()
    owner = StreamOwner("here", "token", b"mine")
    assert tickets.use(tickets.issue(owner), "here", b"yours") is None
    assert tickets.use(tickets.issue(owner), "here", b"mine") == owner


def test_a_stream_acts_with_the_token_of_the_call_and_is_refused_once_the_token_is(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("first\n")

    async def work() -> None:
        async with dialled(server, ClientCredentials(token="first")) as connection:
            assert await connection.unary(path_of("Unary"), b"1", WALL) == b"1"
            file.write_text("second, which is longer\n".replace(" ", "-").replace(",", ""))
            os.utime(file, (1e9, 1e9))
            async with asyncio.timeout(WALL) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
                while True:  # the file is looked at once a second
                    try:
                        await connection.unary(path_of("Unary"), b"2", WALL)
                    except AuthenticationError as error:
                        assert "does not accept the token" in str(error)
                        return
                    await asyncio.sleep(0.05)

    with serving(credentials=ServerCredentials.from_files(token_file=file)) as server:
        on_loop(work)


def test_without_the_token_there_is_no_ticket() -> None:
    async def work() -> None:
        with pytest.raises(AuthenticationError, match="requires a token"):
            await ticket_of(server)
        async with dialled(server, transport="auto") as connection:
            with pytest.raises(AuthenticationError, match="requires a token"):
                await connection.unary(path_of("Unary"), b"", WALL)

    with serving(credentials=ServerCredentials(tokens=["secret"])) as server:
        on_loop(work)


def mutual(files: CertificateFiles) -> tuple[ServerCredentials, ClientCredentials]:
    """Returns the credentials of a server and a client that show each other certificates."""
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    mine = ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )
    return theirs, mine


def test_streams_use_the_certificates_of_the_server(files: CertificateFiles) -> None:
    async def work() -> None:
        async with dialled(server, mine) as connection:
            assert await connection.unary(path_of("Unary"), b"secret", WALL) == b"secret"
            large = bytes(5 << 20)
            assert await received(connection.exchange(path_of("Exchange"), parcel_of(large))) == large
        response = await ticket_of(server, mine)
        hello = with_protocol(StreamHello(ticket=response.ticket))
        with pytest.raises(WorkerUnavailableError):  # without TLS
            await dial(("localhost", response.port), hello, "the server", 1.0)
        hello = with_protocol(StreamHello(ticket=(await ticket_of(server, mine)).ticket))
        without = ClientCredentials.from_files(root_certificates=files.ca)
        with pytest.raises(WorkerUnavailableError):  # without the client's certificate
            await dial(("localhost", response.port), hello, "the server", WALL, client_security(without, "localhost"))

    theirs, mine = mutual(files)
    with serving(credentials=theirs, host="localhost") as server:
        on_loop(work)


def test_a_stranger_with_a_certificate_who_sends_garbage_and_leaves_is_no_error_of_the_server(
    files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    ports: list[int] = []

    async def ask() -> None:
        ports.append((await ticket_of(server, mine)).port)
        async with dialled(server, mine) as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"

    def intrude() -> None:
        context = client_security(mine, "localhost").context
        with contextlib.suppress(OSError), socket.create_connection(("localhost", ports[0]), WALL) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.sendall(b"\xff" * 2_000_000)
                secured.recv(10)

    theirs, mine = mutual(files)
    with serving(credentials=theirs, host="localhost") as server:
        on_loop(ask)
        for _ in range(60):
            intrude()
        on_loop(ask)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_the_name_of_the_server_is_checked(files: CertificateFiles, others: CertificateFiles) -> None:
    async def work() -> None:
        response = await ticket_of(server, mine)
        hello = with_protocol(StreamHello(ticket=response.ticket))
        for credentials, host in (
            (ClientCredentials.from_files(root_certificates=others.ca), "localhost"),
            (mine, "other.example"),
        ):
            with pytest.raises(WorkerUnavailableError, match="certificate verify failed"):
                await dial(("localhost", response.port), hello, "it", WALL, client_security(credentials, host))

    mine = ClientCredentials.from_files(root_certificates=files.ca)
    theirs = ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)
    with serving(credentials=theirs, host="localhost") as server:
        on_loop(work)


def _raw(server: GrpcServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", door_of(server).port), WALL)
    connection.settimeout(WALL)
    return connection


def _greet(client: socket.socket, server: GrpcServer) -> None:
    hello = with_protocol(StreamHello(ticket=on_loop(lambda: ticket_of(server)).ticket)).SerializeToString()
    client.sendall(layout.frame(Kind.HELLO, 0, hello))
    assert client.recv(layout.HEADER_BYTES)[4] == Kind.HELLO


def _rest(connection: socket.socket) -> bytes:
    """Returns what comes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while content := connection.recv(65536):
            found += content
    return found


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", id="HTTP"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), id="HTTP/2"),
        pytest.param(bytes(1000), id="zeros"),
        pytest.param(b"\xff" * 1000, id="ones"),
        pytest.param(layout.frame(Kind.HELLO, 0, b"\xff\xff\xff"), id="a greeting that is none"),
        pytest.param(layout.frame(Kind.HELLO, 0, StreamHello(protocol=99).SerializeToString()), id="another protocol"),
        pytest.param(layout.frame(Kind.PING), id="a ping before the greeting"),
        pytest.param(struct.pack("<IBBHQ", 1 << 30, Kind.HELLO, 0, 0, 0), id="a greeting of a gigabyte"),
        pytest.param(struct.pack("<IBBHQ", 1 << 20, Kind.HELLO, 0, 0, 0), id="a greeting of a megabyte"),
    ],
)
def test_a_stranger_is_cut_off_and_the_server_goes_on(sent: bytes) -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"

    with serving() as server:
        with _raw(server) as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(sent)
            _rest(stranger)
        on_loop(work)
        assert door_of(server).connections <= 1


def test_a_client_that_says_nothing_is_cut_off() -> None:
    with serving(limits=ServerLimits(handshake_seconds=0.2)) as server, _raw(server) as silent:
        assert _rest(silent) == b""


def test_a_client_that_breaks_the_protocol_is_told_and_its_calls_end() -> None:
    service = EchoService()
    with serving(service=service) as server, _raw(server) as client:
        _greet(client, server)
        buffers, _, _ = layout.parcel_frame(1, Parcel(b""), 0, path_of("Hold"))
        client.sendall(b"".join(buffers))
        on_loop(service.entered.wait)
        client.sendall(layout.data_header(1, 10) + bytes(10))
        assert b"were not granted" in _rest(client)
        on_loop(service.done.wait)


def test_calls_that_are_cancelled_before_they_begin_leave_nothing_behind() -> None:
    async def idle() -> None:
        while door_of(server)._calls or door_of(server).connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    with serving() as server:
        with _raw(server) as client:
            _greet(client, server)
            for number in range(1, 500):
                buffers, _, _ = layout.parcel_frame(number, Parcel(b""), 0, path_of("Hold"))
                client.sendall(b"".join(buffers) + layout.frame(Kind.CANCEL, number))
        on_loop(idle)


@pytest.mark.parametrize("method", ["Unary", "Upload", "Exchange"])
def test_a_large_header_that_is_announced_and_never_sent_holds_no_place(method: str) -> None:
    async def another() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"

    with serving(limits=ServerLimits(header_seconds=0.3, max_calls=1)) as server, _raw(server) as client:
        _greet(client, server)
        header = bytes(2 << 20)
        buffers, _, _ = layout.parcel_frame(1, Parcel(header), len(header), path_of(method))
        client.sendall(b"".join(buffers))
        found = b""
        while b"Expected the next message of the call within 0.3 seconds" not in found:
            found += client.recv(65536)
        on_loop(another)


def test_a_time_limit_below_zero_is_over_at_once() -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            with pytest.raises(DeadlineExceededError):
                await connection.unary(path_of("Hold"), b"", -1.0)

    with serving() as server:
        on_loop(work)


def test_a_client_that_does_not_read_is_not_read_from_any_more() -> None:
    async def others() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"

    def call(number: int) -> bytes:
        return b"".join(layout.parcel_frame(number, Parcel(bytes(1000)), 1000, path_of("Unary"))[0])

    with serving() as server, _raw(server) as client:
        _greet(client, server)
        client.settimeout(0.5)
        number = 0
        with contextlib.suppress(TimeoutError):  # raised once the server has stopped reading
            while number < 200_000:
                client.sendall(b"".join(call(number + 1 + more) for more in range(100)))
                number += 100
        assert number < 200_000
        (other,) = door_of(server)._clients
        assert other.stream.protocol.queue.frame_bytes < 40 << 20
        on_loop(others)
        client.settimeout(WALL)
        answers = 0
        while answers < 10 << 20:  # it goes on where it was
            answers += len(client.recv(1 << 20))


def test_connections_beyond_the_limit_are_closed() -> None:
    with serving(limits=ServerLimits(max_connections=2)) as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(_raw(server))
        assert _rest(stack.enter_context(_raw(server))) == b""


def test_the_limit_on_calls_is_that_of_grpc() -> None:
    async def work() -> None:
        async with dialled(server) as one, dialled(server, transport="grpc") as other:
            calls = [asyncio.ensure_future(connection.unary(path_of("Hold"), b"", None)) for connection in (one, other)]
            while door_of(server)._router.running < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            for connection in (one, other):
                with pytest.raises(ResourceLimitError, match="max-calls"):
                    await connection.unary(path_of("Unary"), b"", WALL)
            service.release.set()
            await asyncio.gather(*calls)

    service = EchoService()
    with serving(service=service, limits=ServerLimits(max_calls=2)) as server:
        on_loop(work)


def test_a_server_that_stops_says_that_it_drains_and_lets_calls_end() -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            call = asyncio.ensure_future(connection.unary(path_of("Hold"), b"late", None))
            draining = asyncio.ensure_future(connection.until_draining())
            await service.entered.wait()
            assert not draining.done()
            stopping = asyncio.ensure_future(server.stop(WALL))
            await draining
            service.release.set()
            await call
            await stopping
            with pytest.raises(WorkerUnavailableError):
                await connection.unary(path_of("Unary"), b"", WALL)

    service = EchoService()
    with serving(service=service) as server:
        on_loop(work)


def test_an_idle_stream_is_closed_and_opened_again_when_it_is_used() -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"1", WALL) == b"1"
            while connection._open() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not door_of(server).connections
            assert await connection.unary(path_of("Unary"), b"2", WALL) == b"2"

    with serving(limits=ServerLimits(idle_seconds=0.4)) as server:
        on_loop(work)


def test_a_socket_for_streams_is_beside_that_of_grpc_and_only_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    beside = Path(f"{path}{SOCKET_SUFFIX}")

    async def work() -> None:
        async with dialled(server) as connection:
            assert await connection.unary(path_of("Unary"), b"here", WALL) == b"here"
        hello = with_protocol(StreamHello(token="wrong"))
        stream = await dial(str(beside), hello, "the server", WALL)
        exchange = stream.open(path_of("Unary"), Parcel(b""), None, lambda status: KeyError(status.message))
        with pytest.raises(KeyError, match="token"):
            await exchange.next()
        stream.close()

    beside.touch()  # left behind
    with serving(unix_socket=path, credentials=ServerCredentials(tokens=["secret"])) as server:
        assert beside.stat().st_mode & 0o777 == 0o600

        async def allowed() -> None:
            async with dialled(server, ClientCredentials(token="secret")) as connection:
                assert await connection.unary(path_of("Unary"), b"here", WALL) == b"here"

        on_loop(allowed)
        with pytest.raises(AuthenticationError):
            on_loop(work)
    assert not beside.exists()


def test_a_server_with_certificates_over_a_unix_socket_accepts_no_streams(
    tmp_path: Path, files: CertificateFiles
) -> None:
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    path = tmp_path / "socket"
    with serving(unix_socket=path, credentials=theirs) as server:
        assert not door_of(server).target
        assert [one.name for one in tmp_path.iterdir()] == ["socket"]


def test_a_port_for_streams_that_is_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"streams on port {port}"), serving(stream_port=port):
            pass


def test_a_server_without_streams_is_used_over_grpc() -> None:
    async def work() -> None:
        async with dialled(server, transport="auto") as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
            assert "has no streams" in connection.why_grpc
        async with dialled(server) as connection:
            with pytest.raises(WorkerUnavailableError, match='found none: .*has no streams; pass transport="auto"'):
                await connection.unary(path_of("Unary"), b"x", WALL)

    with serving(streams=False) as server:
        on_loop(work)


def test_a_port_that_cannot_be_reached_leaves_the_client_on_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with dialled(server, transport="auto") as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
            assert "check for a firewall" in connection.why_grpc

    with serving() as server, socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
        other.close()
        monkeypatch.setattr(door_of(server), "port", free)
        on_loop(work)


def test_a_port_where_somebody_else_listens_leaves_the_client_on_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with dialled(server, transport="auto") as connection:
            assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
            found = await asyncio.get_running_loop().sock_accept(other)
            found[0].close()
            while not connection.why_grpc:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with serving() as server, socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        monkeypatch.setattr(door_of(server), "port", other.getsockname()[1])
        on_loop(work)


def test_a_server_without_tls_beyond_loopback_has_no_streams_either() -> None:
    with pytest.raises(Exception, match="insecure"):
        GrpcServer([EchoService()], host="0.0.0.0")
