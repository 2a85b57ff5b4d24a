"""The server class: calls of every kind, errors, limits, how it starts and stops."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import calling
import grpc
import grpc.aio
import pytest
from await_until import await_until
from calling import WALL, call, connected, on_loop, path_of
from echo_service import ECHO, EchoService, parcel_of, whole
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2

from fedstack import errors
from fedstack.computations.types.language import RetryableError
from fedstack.service.host import host as hosting
from fedstack.service.host import limits
from fedstack.service.host.config import HostConfig
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.listening import check_free
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.host.standard_services import HEALTH_SERVICE
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.methods import Method
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import Data, Header, Heartbeat
from fedstack.transport.wire.parcels import Incoming
from fedstack.transport.wire.status import Code, StatusError, error_from_status

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture(autouse=True, params=["grpc", "stream"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls reach the server over both, where a test does not dial by itself."""
    monkeypatch.setattr(calling, "TRANSPORT", request.param)


@pytest.fixture
def echo() -> EchoService:
    return EchoService()


@pytest.fixture
def server(echo: EchoService) -> Iterator[GrpcServer]:
    with ServerThread(GrpcServer([echo])) as thread:
        yield thread.server


def test_a_call_of_each_kind_reaches_its_method(server: GrpcServer) -> None:
    async def work() -> None:
        connection = GrpcConnection(parse_target(server.target))
        assert await connection.unary(path_of("Unary"), b"abc", WALL) == b"abc"
        assert await connection.upload(path_of("Upload"), parcel_of(b"abc", 2), WALL) == b"abc"
        pieces = [piece async for piece in connection.download(path_of("Download"), b"abc")]
        assert pieces == [Heartbeat(done=1), Header(b"3"), Data(memoryview(b"abc"))]
        assert await whole(Incoming(connection.exchange(path_of("Exchange"), parcel_of(b"abc", 2)))) == b"abc"
        assert [m async for m in connection.stream(path_of("Stream"), [b"ab", b"c"])] == [b"ab", b"c"]
        await connection.close()

    on_loop(work)


def test_a_message_of_every_size_goes_both_ways(server: GrpcServer) -> None:
    large = bytes(17 << 20)
    assert call(server.target, "Unary", large) == large
    assert call(server.target, "Unary", b"") == b""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(Code.OUT_OF_RANGE, "that far"), Code.OUT_OF_RANGE),
        (errors.InvalidValueError("that far"), Code.INVALID_ARGUMENT),
        (errors.StaleSessionError("that far"), Code.FAILED_PRECONDITION),
        (errors.LeafError("that far\nand over two lines", computation_name="f"), Code.UNKNOWN),
        (RetryableError("that far"), Code.UNAVAILABLE),
        (ZeroDivisionError("that far"), Code.INTERNAL),
        (MemoryError("that far"), Code.RESOURCE_EXHAUSTED),
        (RecursionError(), Code.RESOURCE_EXHAUSTED),
        (asyncio.CancelledError("that far"), Code.CANCELLED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.name,
)
def test_an_error_ends_the_call_with_its_code(error: BaseException, code: Code) -> None:
    echo = EchoService(lambda: error)

    async def work(target: str) -> grpc.aio.AioRpcError:
        async with grpc.aio.insecure_channel(target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(path_of("Fail"))(b"", timeout=WALL)
            return raised.value

    with ServerThread(GrpcServer([echo])) as thread:
        found = on_loop(lambda: work(thread.target))
        await_until(lambda: (f"{ECHO}/Fail", code.name, 1) in list(thread.server.call_counts))
    assert found.code().value[0] == code
    if code is not Code.CANCELLED and str(error):
        assert "that far" in found.details()


def test_an_error_of_fedstack_travels_with_its_class_and_traceback(server: GrpcServer, echo: EchoService) -> None:
    echo.error = lambda: errors.LeafError("Expected weights, found none", computation_name="train", client_index=3)

    async def work() -> Exception:
        async with grpc.aio.insecure_channel(server.target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(path_of("Fail"))(b"", timeout=WALL)
        metadata = dict(raised.value.trailing_metadata())
        return error_from_status(Code.UNKNOWN, "", metadata["grpc-status-details-bin"], server.target)

    error = on_loop(work)
    assert isinstance(error, errors.LeafError)
    assert (str(error), error.computation_name, error.client_index) == ("Expected weights, found none", "train", 3)
    assert "in fail" in str(error.__cause__)


def test_an_unforeseen_error_is_logged_once_with_its_traceback(
    server: GrpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(errors.RemoteError, match="ZeroDivisionError"):
        call(server.target, "Fail")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "ZeroDivisionError" in caplog.text
    assert f"{ECHO}/Fail" in caplog.text


def test_a_foreseen_error_is_logged_without_its_text(
    server: GrpcServer, echo: EchoService, caplog: pytest.LogCaptureFixture
) -> None:
    echo.error = lambda: errors.CardinalityError("Expected 3 clients, found 4")
    with caplog.at_level(logging.INFO), pytest.raises(errors.CardinalityError):
        call(server.target, "Fail")
    assert [record.getMessage() for record in caplog.records] == [
        "Fail failed: CardinalityError; called from ipv4:127.0.0.1"
    ]


def test_a_process_that_may_open_too_few_files_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_descriptors", lambda: 31)
    message = "at least 32 open files for a server, found a limit of 31; raise it"
    with pytest.raises(errors.ResourceLimitError, match=message), ServerThread(GrpcServer([EchoService()])):
        pass
    monkeypatch.setattr(limits, "_descriptors", lambda: 32)
    with ServerThread(GrpcServer([EchoService()])) as thread:
        assert thread.target


def test_bytes_that_are_no_message_are_the_callers_fault(server: GrpcServer) -> None:
    async def work() -> None:
        connection = connected(server.target)
        with pytest.raises(errors.InvalidValueError, match="Expected a message for grpc.health.v1.Health/Check"):
            await connection.unary(f"/{HEALTH_SERVICE}/Check", b"\xff\xff", WALL)
        await connection.close()

    on_loop(work)


def test_a_method_that_is_not_there_is_told_with_the_services_that_are(server: GrpcServer) -> None:
    with pytest.raises(errors.RemoteError, match=f"found {path_of('Dance')}; its services are {ECHO}") as raised:
        call(server.target, "Dance")
    assert raised.value.code == "UNIMPLEMENTED"


@pytest.mark.parametrize("method", ["Hold", "HoldStream"])
def test_a_client_that_goes_away_cancels_its_method(method: str, server: GrpcServer, echo: EchoService) -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            running = channel.unary_stream(path_of(method))(b"")
            await echo.entered.wait()
            running.cancel()
            await echo.done.wait()

    on_loop(work)
    assert echo.ended == ["cancelled"]


def test_a_deadline_cancels_the_method(server: GrpcServer, echo: EchoService) -> None:
    with pytest.raises(errors.DeadlineExceededError):
        call(server.target, "Hold", timeout=0.2)

    async def work() -> None:
        await echo.done.wait()

    on_loop(work)
    assert echo.ended == ["cancelled"]


def test_a_reader_that_leaves_a_stream_ends_its_generator_at_once() -> None:
    echo = EchoService()
    closed = asyncio.Event()

    async def endless(requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 16)
        finally:
            closed.set()

    echo.stream = endless  # type: ignore[method-assign]

    async def work(target: str) -> None:
        connection = GrpcConnection(parse_target(target))
        stream = connection.stream(path_of("Stream"), [b""])
        await anext(stream)
        await stream.aclose()
        await closed.wait()
        await connection.close()

    with ServerThread(GrpcServer([echo])) as thread:
        on_loop(lambda: work(thread.target))


def test_one_call_beyond_the_limit_is_refused_and_health_still_answers(echo: EchoService) -> None:
    async def work(target: str) -> None:
        connection = connected(target)
        running = [asyncio.ensure_future(connection.unary(path_of("Hold"), b"", WALL)) for _ in range(2)]
        await echo.entered.wait()
        with pytest.raises(errors.ResourceLimitError, match="Expected at most 2 calls at a time"):
            await connection.unary(path_of("Unary"), b"", WALL)
        assert await connection.unary(f"/{HEALTH_SERVICE}/Check", b"", WALL)
        echo.release.set()
        await asyncio.gather(*running)
        assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
        await connection.close()

    with ServerThread(GrpcServer([echo], limits=ServerLimits(max_calls=2))) as thread:
        on_loop(lambda: work(thread.target))


@pytest.mark.long
def test_thousands_of_calls_at_once_are_all_answered(server: GrpcServer) -> None:
    async def work() -> int:
        async with grpc.aio.insecure_channel(server.target) as channel:  # ours would hold some back
            method = channel.unary_unary(path_of("Unary"))
            return len(await asyncio.gather(*(method(b"x", timeout=2 * WALL) for _ in range(3000))))

    assert on_loop(work, 2 * WALL) == 3000


def test_calls_are_counted_by_method_and_code(server: GrpcServer, echo: EchoService) -> None:
    for _ in range(3):
        call(server.target, "Unary")
    echo.error = lambda: errors.ClosedError("Expected more")
    for method in ("Fail", "Dance", "Prance"):
        with pytest.raises(errors.FedstackError):
            call(server.target, method)
    assert [count for count in server.call_counts if not count[0].endswith("Streams/Open")] == [
        ("(other)", "UNIMPLEMENTED", 2),
        (f"{ECHO}/Fail", "ABORTED", 1),
        (f"{ECHO}/Unary", "OK", 3),
    ]


def test_stopping_waits_for_running_calls_and_for_those_that_they_need(echo: EchoService) -> None:
    async def work() -> None:
        server = GrpcServer([echo])
        await server.start()
        connection = connected(server.target)
        running = asyncio.ensure_future(connection.unary(path_of("Hold"), b"held", WALL))
        await echo.entered.wait()
        stopping = asyncio.ensure_future(server.stop(10 * WALL))
        while await health_of(connection) == SERVING:
            pass
        assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
        assert not stopping.done()
        assert echo.closed == 0
        echo.release.set()
        assert await running == b"held"
        await stopping
        await server.wait()
        with pytest.raises(errors.WorkerUnavailableError):
            await connection.unary(path_of("Unary"), b"", WALL)
        await connection.close()

    on_loop(work)
    assert (echo.ended, echo.closed) == (["released"], 1)


@pytest.mark.parametrize("method", ["Hold", "HoldStream"])
def test_a_call_that_outlasts_the_grace_is_told_to_try_elsewhere(method: str, echo: EchoService) -> None:
    async def work() -> None:
        server = GrpcServer([echo], grace_seconds=0.05)
        await server.start()
        connection = GrpcConnection(parse_target(server.target))
        running = asyncio.ensure_future(anext(skip(connection.stream(path_of(method), [b""]), b"begun")))
        await echo.entered.wait()
        await server.stop()
        with pytest.raises(errors.WorkerUnavailableError, match="The server is stopping"):
            await running
        await connection.close()

    on_loop(work)
    assert (echo.ended, echo.closed) == (["cancelled"], 1)


async def skip(messages: AsyncIterator[bytes], skipped: bytes) -> AsyncIterator[bytes]:
    async for message in messages:
        if message != skipped:
            yield message


async def health_of(connection: GrpcConnection, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    answer = await connection.unary(f"/{HEALTH_SERVICE}/Check", request, WALL)
    return health_pb2.HealthCheckResponse.FromString(answer).status


def test_a_method_that_does_not_end_when_cancelled_does_not_hold_up_the_stop(
    echo: EchoService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosting, "_LAST_SECONDS", 0.05)
    let_go = asyncio.Event()

    async def stubborn(request: bytes) -> bytes:
        echo.entered.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        return request

    echo.hold = stubborn  # type: ignore[method-assign]

    async def work() -> None:
        server = GrpcServer([echo])
        await server.start()
        connection = connected(server.target)
        running = asyncio.ensure_future(connection.unary(path_of("Hold"), b"", WALL))
        await echo.entered.wait()
        await server.stop(0.0)
        let_go.set()
        await asyncio.gather(running, return_exceptions=True)
        await connection.close()

    on_loop(work)
    assert echo.closed == 1
    assert "Stopping although 1 cancelled call did not end in time" in caplog.text


def test_a_second_stop_with_less_grace_hurries_the_first(echo: EchoService) -> None:
    async def work() -> None:
        server = GrpcServer([echo])
        await server.start()
        connection = connected(server.target)
        running = asyncio.ensure_future(connection.unary(path_of("Hold"), b"", 10 * WALL))
        await echo.entered.wait()
        slow = asyncio.ensure_future(server.stop(10 * WALL))
        await server.stop(0.0)
        await slow
        await asyncio.gather(running, return_exceptions=True)
        await connection.close()

    on_loop(work)
    assert echo.closed == 1


def test_a_server_that_never_started_closes_its_services_once(echo: EchoService) -> None:
    thread = ServerThread(GrpcServer([echo]))
    with pytest.raises(errors.ClosedError, match="call start\\(\\) first"):
        _ = thread.target
    thread.stop()
    thread.stop()
    assert echo.closed == 1
    with pytest.raises(errors.ClosedError, match="a new one"):
        thread.start()


def test_a_service_that_cannot_close_does_not_keep_others_open(
    echo: EchoService, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = EchoService()

    async def close() -> None:
        raise RuntimeError("stuck")

    stubborn.close = close  # type: ignore[method-assign]
    with ServerThread(GrpcServer([stubborn, echo])):
        pass
    assert echo.closed == 1
    assert "stuck" in caplog.text


def test_a_service_that_cannot_hand_over_is_logged_and_the_others_hand_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(EchoService):
        @property
        def methods(self) -> Mapping[str, Mapping[str, Method]]:
            return {}

        async def handed_over(self) -> None:
            raise ZeroDivisionError("lost count")

    class Slow(EchoService):
        async def handed_over(self) -> None:
            self.entered.set()
            await self.release.wait()

    slow = Slow()

    async def work() -> None:
        server = GrpcServer([Broken(), slow])
        await server.start()
        stopping = asyncio.ensure_future(server.stop(10 * WALL))
        await asyncio.wait_for(slow.entered.wait(), WALL)
        assert not stopping.done()
        slow.release.set()
        await asyncio.wait_for(stopping, WALL)

    on_loop(work)
    assert "lost count" in caplog.text


def test_joining_waits_for_the_stop(echo: EchoService) -> None:
    thread = ServerThread(GrpcServer([echo]))
    thread.start()
    assert not thread.join(0.01)
    thread.stop()
    assert thread.join(WALL)


def test_health_says_serving_for_the_server_and_its_services_until_it_stops(echo: EchoService) -> None:
    async def watch(connection: GrpcConnection, service: str, states: list[int], seen: asyncio.Event) -> None:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        async for answer in connection.stream(f"/{HEALTH_SERVICE}/Watch", [request]):
            states.append(health_pb2.HealthCheckResponse.FromString(answer).status)
            seen.set()

    async def work() -> None:
        server = GrpcServer([echo])
        await server.start()
        connection = GrpcConnection(parse_target(server.target))
        assert [await health_of(connection, service) for service in ("", ECHO)] == [SERVING, SERVING]
        with pytest.raises(errors.RemoteError, match="Expected the name of a service of this server") as raised:
            await health_of(connection, "nothing")
        assert raised.value.code == "NOT_FOUND"
        states: list[list[int]] = [[], [], [], []]
        events = [asyncio.Event() for _ in states]
        watched = ["", ECHO, ECHO, "nothing"]
        watches = [
            asyncio.ensure_future(watch(connection, service, found, event))
            for service, found, event in zip(watched, states, events)
        ]
        for event in events:
            await event.wait()
        await server.stop(10 * WALL)  # the watches do not hold it up
        await asyncio.gather(*watches)
        assert states == [[SERVING, NOT_SERVING]] * 3 + [[SERVICE_UNKNOWN]]
        await connection.close()

    on_loop(work)


class _Described(EchoService):
    """Has the name of another system's service, with a message of ours."""

    @property
    def methods(self) -> Any:
        return {"tensorflow_federated.v0.ExecutorGroup": super().methods[ECHO]}

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        file = FileDescriptorProto(
            name="test/group.proto",
            package="tensorflow_federated.v0",
            syntax="proto3",
            dependency=["fedstack/proto/executor.proto"],
        )
        method = file.service.add(name="ExecutorGroup").method.add(name="Unary")
        method.input_type = method.output_type = ".fedstack.v1.GetExecutorRequest"
        return (file,)


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_reflection_describes_services_with_all_that_they_use(version: str) -> None:
    reflection_pb2 = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tensorflow_federated.v0.ExecutorGroup"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=HEALTH_SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Service"),
    ]

    async def work(target: str) -> list[Any]:
        connection = GrpcConnection(parse_target(target))
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        answers = connection.stream(path, [request.SerializeToString() for request in requests])
        found = [reflection_pb2.ServerReflectionResponse.FromString(answer) async for answer in answers]
        await connection.close()
        return found

    with ServerThread(GrpcServer([_Described()])) as thread:
        listed, group, health, unknown = on_loop(lambda: work(thread.target))
    assert {service.name for service in listed.list_services_response.service} == {
        "tensorflow_federated.v0.ExecutorGroup",
        "fedstack.v1.ServerStatus",
        HEALTH_SERVICE,
        "grpc.reflection.v1alpha.ServerReflection",
    }
    files = [FileDescriptorProto.FromString(f) for f in group.file_descriptor_response.file_descriptor_proto]
    assert {"test/group.proto", "fedstack/proto/executor.proto"} <= {file.name for file in files}
    assert len(health.file_descriptor_response.file_descriptor_proto) == 1
    assert unknown.error_response.error_code == Code.NOT_FOUND


def test_reflection_can_be_left_out(echo: EchoService) -> None:
    async def work(target: str) -> None:
        connection = connected(target)
        with pytest.raises(errors.RemoteError, match="Expected a method of this server"):
            path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            await connection.unary(path, b"", WALL)
        await connection.close()

    with ServerThread(GrpcServer([echo], reflection=False)) as thread:
        on_loop(lambda: work(thread.target))


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])
@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_is_taken_on_ipv6_only_is_in_use(host: str, shares: bool) -> None:
    with socket.socket(socket.AF_INET6) as other:
        if shares:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind(("::1", 0))
        except OSError:
            return  # a machine without IPv6
        other.listen()
        with pytest.raises(errors.AddressError, match=f"of {host} is in use"):
            check_free(HostConfig(host=host, port=other.getsockname()[1]).listens)


def test_two_servers_do_not_share_a_port(server: GrpcServer) -> None:
    port = int(server.target.rpartition(":")[2])
    with pytest.raises(errors.AddressError, match=f"Port {port} of 127.0.0.1 is in use"):
        ServerThread(GrpcServer([EchoService()], port=port)).start()
    assert call(server.target, "Unary", b"x") == b"x"


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("no-such-host.invalid", "Expected a name or an address of this machine, found 'no-such-host.invalid'"),
        ("192.0.2.1", "Expected an address of this machine, found 192.0.2.1"),
    ],
)
def test_an_address_that_is_not_of_this_machine_is_refused(host: str, complaint: str) -> None:
    with pytest.raises(errors.AddressError, match=complaint):
        ServerThread(GrpcServer([EchoService()], host=host, insecure=True)).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "worker.example"])
def test_an_address_that_others_can_reach_needs_tls_or_the_users_word(host: str) -> None:
    with pytest.raises(errors.InvalidValueError, match="Expected TLS for an address that other machines can reach"):
        GrpcServer([EchoService()], host=host)
    GrpcServer([EchoService()], host=host, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_an_address_of_this_machine_alone_needs_nothing(host: str) -> None:
    GrpcServer([EchoService()], host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "::1"])
def test_the_target_can_be_dialled_whatever_the_server_listens_at(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    with ServerThread(GrpcServer([EchoService()], host=host, insecure=True)) as thread:
        assert call(thread.target, "Unary", b"x") == b"x"


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


unix_sockets = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")


@unix_sockets
def test_a_unix_socket_serves_its_owner_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with ServerThread(GrpcServer([EchoService()], unix_socket=path)) as thread:
        assert thread.target == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        assert call(thread.target, "Unary", b"x") == b"x"
    assert not path.exists()


@unix_sockets
def test_the_socket_of_a_running_server_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with ServerThread(GrpcServer([EchoService()], unix_socket=path)) as thread:
        with pytest.raises(errors.AddressError, match="is in use"):
            ServerThread(GrpcServer([EchoService()], unix_socket=path)).start()
        assert call(thread.target, "Unary", b"x") == b"x"


@unix_sockets
def test_the_socket_of_a_dead_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with ServerThread(GrpcServer([EchoService()], unix_socket=path)) as thread:
        assert call(thread.target, "Unary", b"x") == b"x"


@unix_sockets
def test_a_path_that_cannot_be_a_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path, complaint in (
        (tmp_path / "file", "Expected a free path for the socket, found a file at"),
        (tmp_path / "missing" / "socket", "Expected a folder for the socket"),
        (tmp_path / ("x" * 120), "Expected a path of at most 103 bytes"),
    ):
        with pytest.raises(errors.AddressError, match=complaint):
            ServerThread(GrpcServer([EchoService()], unix_socket=path)).start()
    assert (tmp_path / "file").read_text() == "precious"


def test_large_chunks_stream_at_the_speed_of_the_loopback_device(server: GrpcServer) -> None:
    chunk, count = bytes(2 << 20), 32

    async def work() -> float:
        connection = GrpcConnection(parse_target(server.target))
        begin = time.perf_counter()
        received = 0
        async for message in connection.stream(path_of("Stream"), [chunk] * count):
            received += len(message)
        await connection.close()
        assert received == count * len(chunk)
        return time.perf_counter() - begin

    # 64 MiB both ways take 0.2 s on an idle machine; a copy too many per byte would be seen only in a benchmark.
    assert on_loop(work) < WALL / 2
