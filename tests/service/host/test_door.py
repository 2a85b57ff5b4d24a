"""What clients can hold at the door of a server: places, bytes, time. And that honest ones get in beside them."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from calling import WALL, call, on_loop, path_of
from echo_service import EchoService

import fedstack
from fedstack import errors
from fedstack.proto import executor_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.calls import call_router
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits, ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.host.standard_services import HEALTH_SERVICE
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP
from fedstack.transport.peers.methods import Service
from fedstack.transport.wire.addresses import parse_target

WATCH = f"/{HEALTH_SERVICE}/Watch"
CHECK = f"/{HEALTH_SERVICE}/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
MIB = 1 << 20
# What a client of HTTP/2 says first: that it is one, and settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextlib.contextmanager
def serving(service: Service, *tokens: str, compression: bool = False, **limits: Any) -> Iterator[GrpcServer]:
    credentials = ServerCredentials(tokens=tokens)
    server = GrpcServer([service], credentials=credentials, limits=ServerLimits(**limits), compression=compression)
    with ServerThread(server) as thread:
        yield thread.server


@contextlib.asynccontextmanager
async def dialled(server: GrpcServer, token: str | None = None) -> AsyncIterator[GrpcConnection]:
    connection = GrpcConnection(parse_target(server.target), ClientCredentials(token=token))
    try:
        yield connection
    finally:
        await connection.close()


async def until(holds: Callable[[], bool]) -> None:
    """Returns when something has come to hold; the wall limit of the test is that of waiting."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, Any]) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def begun(connection: GrpcConnection, path: str, request: bytes = b"") -> Any:
    """Returns a stream from which a first message has come."""
    stream = connection.stream(path, [request])
    await anext(stream)
    return stream


async def silent(channel: grpc.aio.Channel, path: str) -> tuple[str, str]:
    """Says nothing, and returns the status with which the call ends."""
    stream = channel.stream_stream(path)(timeout=WALL)
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return (await stream.code()).name, await stream.details()


def test_one_watch_too_many_is_refused_and_health_still_answers() -> None:
    async def work() -> None:
        async with dialled(server) as connection:
            watches = [await begun(connection, WATCH) for _ in range(3)]
            with pytest.raises(errors.ResourceLimitError, match=r"at most 3 calls .* that watch .* --max-watches"):
                await begun(connection, WATCH)
            assert await connection.unary(CHECK, b"", WALL)
            for watch in watches:
                await watch.aclose()
            while True:  # their places are free once the server has seen that they are gone
                try:
                    watch = await begun(connection, WATCH)
                except errors.ResourceLimitError:
                    continue
                await watch.aclose()
                break

    with serving(EchoService(), max_watches=3) as server:
        on_loop(work)


def test_questions_to_reflection_count_as_watches_and_give_way_where_none_is_asked() -> None:
    reflection_pb2 = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    question = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()

    async def work() -> None:
        async with dialled(server) as connection, grpc.aio.insecure_channel(server.target) as channel:
            async with in_background(*(silent(channel, REFLECTION) for _ in range(2))) as asked:
                (first, *_), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                assert first.result()[0] == "DEADLINE_EXCEEDED"
                stream = channel.stream_stream(REFLECTION)(timeout=WALL)
                await stream.write(question)
                await stream.read()
                assert (await silent(channel, REFLECTION))[0] == "RESOURCE_EXHAUSTED"
                assert await connection.unary(CHECK, b"", WALL)

    with serving(EchoService(), max_watches=1) as server:
        on_loop(work)


def test_a_check_that_says_nothing_gives_way_to_one_that_does() -> None:
    async def work() -> None:
        async with dialled(server) as connection, grpc.aio.insecure_channel(server.target) as channel:
            async with in_background(*(silent(channel, CHECK) for _ in range(3))) as asked:
                (first, *_), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                code, words = first.result()
                assert code == "DEADLINE_EXCEEDED"
                assert words.startswith("The call had not sent its first message when another")
                assert await connection.unary(CHECK, b"", WALL)

    with serving(EchoService(), max_watches=1) as server:
        on_loop(work)


@pytest.mark.parametrize("method", ["Upload", "Exchange"])
def test_a_stream_that_does_not_begin_ends(method: str) -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            code, words = await silent(channel, path_of(method))
        assert code == "DEADLINE_EXCEEDED"
        assert words == (
            "Expected the first message of the call within 0.05 seconds, found none; send it earlier, or "
            "start the worker with a larger --header-seconds"
        )

    with serving(EchoService(), header_seconds=0.05) as server:
        on_loop(work)


def test_a_stream_that_has_begun_may_pause() -> None:
    async def work() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            stream = channel.stream_stream(path_of("Stream"))(timeout=WALL)
            found = []
            for message, pause in ((b"a", 1.5), (b"b", 0.0)):
                await stream.write(message)
                found.append(await stream.read())
                await asyncio.sleep(pause)
            return found

    with serving(EchoService(), header_seconds=1.0) as server:
        assert on_loop(work) == [b"a", b"b"]


def test_a_call_whose_message_does_not_come_counts_and_gives_way_to_others() -> None:
    async def work() -> None:
        async with dialled(server) as connection, grpc.aio.insecure_channel(server.target) as channel:
            async with in_background(*(silent(channel, path_of("Unary")) for _ in range(2))) as asked:
                await until(lambda: "2 calls running" in repr(server))
                with pytest.raises(errors.ResourceLimitError, match=r"Expected at most 2 calls .* --max-calls"):
                    await connection.unary(path_of("Unary"), b"x", WALL)
                await asyncio.sleep(2.0)
                assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                [(code, _)] = [task.result() for task in asked if task.done()]
                assert code == "DEADLINE_EXCEEDED"

    with serving(EchoService(), max_calls=2, header_seconds=2.0) as server:
        on_loop(work)


def test_a_call_that_ends_without_its_message_is_refused() -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            stream = channel.stream_stream(path_of("Unary"))(timeout=WALL)
            await stream.done_writing()
            assert (await stream.code()).name == "INVALID_ARGUMENT"
            assert "ended without a message" in await stream.details()

    with serving(EchoService()) as server:
        on_loop(work)


def test_while_others_are_there_a_client_has_half_of_the_calls() -> None:
    echo = EchoService()

    async def work() -> None:
        hold = path_of("HoldStream")
        async with dialled(server, "one") as one, dialled(server, "two") as two:
            mine = [await begun(one, hold) for _ in range(4)]
            with pytest.raises(errors.ResourceLimitError, match="Expected at most 4 calls at a time, found one more; "):
                await begun(two, hold)
            await mine.pop().aclose()
            await until(lambda: "3 calls running" in repr(server))
            # The other has asked, so the place is not for who has more than half.
            with pytest.raises(errors.ResourceLimitError, match="one more from a client that has half of them"):
                await begun(one, hold)
            theirs = await begun(two, hold)
            for stream in [*mine, theirs]:
                await stream.aclose()

    with serving(echo, "one", "two", max_calls=4) as server:
        on_loop(work)


def test_who_cannot_be_told_apart_may_have_all_calls() -> None:
    echo = EchoService()

    async def work() -> None:
        async with dialled(server, "one") as one, dialled(server, "one") as two:
            streams = [await begun(one, path_of("HoldStream")), await begun(two, path_of("HoldStream"))]
            streams += [await begun(one, path_of("HoldStream")), await begun(one, path_of("HoldStream"))]
            for stream in streams:
                await stream.aclose()

    with serving(echo, "one", max_calls=4) as server:
        on_loop(work)


def test_a_client_with_all_sessions_gives_one_back_to_another_that_asks() -> None:
    service = ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(max_sessions=4))

    async def work() -> None:
        path = f"/{EXECUTOR_GROUP}/GetExecutor"

        async def opened(connection: GrpcConnection) -> executor_pb2.ExecutorId:
            response = await connection.unary(path, b"", WALL)
            return executor_pb2.GetExecutorResponse.FromString(response).executor

        async def create(connection: GrpcConnection, session: executor_pb2.ExecutorId) -> None:
            value = executor_pb2.Value(array={"dtype": 1, "shape": {}, "float32_list": {"value": [1.0]}})
            request = executor_pb2.CreateValueRequest(executor=session, value=value)
            await connection.unary(f"/{EXECUTOR_GROUP}/CreateValue", request.SerializeToString(), WALL)

        async with dialled(server, "one") as one, dialled(server, "two") as two:
            first, second, *rest = [await opened(one) for _ in range(4)]
            await asyncio.sleep(0.01)
            await create(one, first)  # so the second is the one that was used longest ago
            with pytest.raises(
                errors.ResourceLimitError, match="Expected at most 4 sessions at a time, found one more;"
            ):
                await opened(one)
            await create(two, await opened(two))
            with pytest.raises(errors.StaleSessionError, match="it has ended"):
                await create(one, second)
            await create(two, await opened(two))
            with pytest.raises(errors.ResourceLimitError, match="one more"):
                await opened(two)
            with pytest.raises(errors.ResourceLimitError, match="one more"):
                await opened(one)
            alive = 0
            for session in (first, *rest):
                with contextlib.suppress(errors.StaleSessionError):
                    await create(one, session)
                    alive += 1
            assert alive == 2

    with serving(service, "one", "two") as server:
        on_loop(work)


def test_large_messages_wait_for_room_and_small_ones_do_not() -> None:
    echo = EchoService()

    async def work() -> None:
        async with dialled(server) as connection:
            large = bytes(MIB)
            async with in_background(connection.unary(path_of("Hold"), large, None)) as [held]:
                await echo.entered.wait()
                async with in_background(connection.unary(path_of("Unary"), large, None)) as [waiting]:
                    assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
                    await until(lambda: "2 calls running" in repr(server))
                    await asyncio.sleep(0.1)
                    assert not waiting.done()
                    echo.release.set()
                    assert await held == await waiting == large

    with serving(echo, max_unary_bytes=MIB + 1000) as server:
        on_loop(work)


def test_a_message_larger_than_all_room_gets_through_alone() -> None:
    with serving(EchoService(), max_unary_bytes=MIB) as server:
        assert call(server.target, "Unary", bytes(3 * MIB)) == bytes(3 * MIB)


def test_a_message_that_finds_no_room_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_router, "_ROOM_SECONDS", 0.05)
    echo = EchoService()

    async def work() -> None:
        async with dialled(server) as connection:
            async with in_background(connection.unary(path_of("Hold"), bytes(MIB), None)):
                await echo.entered.wait()
                with pytest.raises(errors.ResourceLimitError, match=r"no room for 1048576 more; .* --max-unary-bytes"):
                    await connection.unary(path_of("Unary"), bytes(MIB), WALL)
                assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"

    with serving(echo, max_unary_bytes=MIB) as server:
        on_loop(work)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused_unless_asked_for(compression: grpc.Compression) -> None:
    async def answer(server: GrpcServer) -> Any:
        async with grpc.aio.insecure_channel(server.target, compression=compression) as channel:
            try:
                return await channel.unary_unary(path_of("Unary"))(bytes(MIB), timeout=WALL)
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details()

    with serving(EchoService()) as server:
        code, words = on_loop(lambda: answer(server))
        assert code == "UNIMPLEMENTED"
        assert f"Compression algorithm '{compression.name.lower()}' is disabled" in words
    with serving(EchoService(), compression=True) as server:
        assert on_loop(lambda: answer(server)) == bytes(MIB)


def test_our_clients_take_compressed_messages_only_if_asked_to() -> None:
    async def handle(request: bytes, context: Any) -> bytes:
        return bytes(MIB)

    async def work() -> None:
        handler = grpc.unary_unary_rpc_method_handler(handle)
        methods = grpc.method_handlers_generic_handler("fedstack.test.Echo", {"Unary": handler})
        server = grpc.aio.server(handlers=[methods], compression=grpc.Compression.Gzip)
        target = parse_target(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        connections = GrpcConnection(target), GrpcConnection(target, compression=True)
        try:
            with pytest.raises(errors.RemoteError, match="Compression algorithm not supported: gzip"):
                await connections[0].unary(path_of("Unary"), b"", WALL)
            assert await connections[1].unary(path_of("Unary"), b"", WALL) == bytes(MIB)
        finally:
            for connection in connections:
                await connection.close()
            await server.stop(None)

    on_loop(work)


def seconds_until_closed(server: GrpcServer, said: bytes) -> float:
    """Returns how long a server keeps a connection that says so much and then nothing."""
    host, _, port = server.target.rpartition(":")
    begin = time.monotonic()
    with socket.create_connection((host, int(port)), WALL) as connection:
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
    return time.monotonic() - begin


@pytest.mark.parametrize("said", [b"", GREETING[:7], GREETING[:24]], ids=["nothing", "half", "no settings"])
def test_a_connection_that_does_not_say_what_it_is_is_closed(said: bytes) -> None:
    with serving(EchoService(), handshake_seconds=0.3) as server:
        assert seconds_until_closed(server, said) > 0.2
        assert call(server.target, "Unary", b"x") == b"x"


def test_a_connection_without_calls_is_closed() -> None:
    with serving(EchoService(), idle_seconds=0.3) as server:
        assert seconds_until_closed(server, GREETING) > 0.1


def test_one_connection_too_many_is_closed_at_once_and_those_before_it_stay() -> None:
    with serving(EchoService(), max_connections=3) as server, contextlib.ExitStack() as stack:
        host, _, port = server.target.rpartition(":")

        async def work() -> None:
            async with dialled(server) as connection:
                assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
                found = []
                for _ in range(4):
                    raw = stack.enter_context(socket.create_connection((host, int(port)), WALL))
                    raw.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_sendall(raw, GREETING)
                    try:
                        found.append(bool(await loop.sock_recv(raw, 1 << 16)))
                    except ConnectionResetError:
                        found.append(False)
                assert found == [True, True, False, False]
                assert await connection.unary(path_of("Unary"), b"y", WALL) == b"y"

        on_loop(work)


@pytest.mark.slow
def test_our_clients_lose_no_call_when_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstack.transport.grpc import channels

    options = {**dict(channels.CLIENT_OPTIONS), "grpc.client_idle_timeout_ms": 100}
    monkeypatch.setattr(channels, "CLIENT_OPTIONS", tuple(options.items()))

    async def calls(number: int) -> None:
        async with dialled(server) as connection:
            for turn in range(15):
                assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
                assert [m async for m in connection.stream(path_of("Stream"), [b"x"])] == [b"x"]
                await asyncio.sleep(0.06 + 0.01 * ((number + 7 * turn) % 16))

    async def work() -> None:
        await asyncio.gather(*(calls(number) for number in range(16)))

    with serving(EchoService(), idle_seconds=2.0) as server:  # a slow machine delays no client for so long
        on_loop(work, 2 * WALL)
