"""Connections that are cut, that stall, that fall silent, and servers that are none."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fault_leaves import MODEL, double, doubled_sum, length_of, mean_length, model_of, models
from fault_stacks import Background, context_over, eventually, executor_at, locally, status_of, stub_to
from processes import WALL, Fleet
from tcp_proxy import Proxies

import fedstack
from fedstack.errors import DeadlineExceededError, NoWorkersError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target

pytestmark = pytest.mark.slow

LARGE = np.linspace(0, 1, MODEL.shape[0], dtype=np.float32)  # 4 MB, and so two chunks
MIDWAY = 3_000_000


async def wait_on(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, WALL)


async def until(look: Any) -> None:
    await asyncio.to_thread(eventually, look)


async def result_of(executor: RemoteExecutor, function: Any, argument: Any, type_spec: Any) -> Any:
    called = await executor.create_value(function)
    return await (await executor.create_call(called, await executor.create_value(argument, type_spec))).compute()


async def test_a_value_is_sent_again_if_the_connection_is_cut_in_the_midst_of_it(
    fleet: Fleet, proxies: Proxies
) -> None:
    worker = fleet.start()
    proxy = proxies.before(worker.target)
    with executor_at(proxy.target) as executor:
        first = await executor.create_value(np.float32(0.5), np.float32)
        await first.compute()
        held = status_of(worker.target).values
        is_sending = proxy.hold_after("up", MIDWAY)
        sending = asyncio.ensure_future(executor.create_value(LARGE, MODEL))
        await wait_on(is_sending)
        proxy.cut()
        sent = await asyncio.wait_for(sending, WALL)
        await until(lambda: status_of(worker.target).running == 0)
        assert status_of(worker.target).values == held + 1
        # The session and what is in it are still there, over a new connection.
        np.testing.assert_array_equal(await sent.compute(), LARGE)
        assert await first.compute() == np.float32(0.5)
        assert await result_of(executor, length_of, LARGE, MODEL) == locally(length_of, LARGE)


def _is_there(executor: RemoteExecutor) -> bool:
    with contextlib.suppress(WorkerUnavailableError):
        io_loop.run_sync(executor.stub.handshake(), WALL)
        return True
    return False


async def fetched_half_way(executor: RemoteExecutor, proxy: Any) -> tuple[Any, "asyncio.Future[Any]"]:
    """Returns a large value, and the fetching of it, which a proxy holds up midway."""
    function = await executor.create_value(model_of)
    value = await executor.create_call(function, await executor.create_value(np.float32(0.5), np.float32))
    is_receiving = proxy.hold_after("down", MIDWAY)
    fetching = asyncio.ensure_future(value.compute())
    await wait_on(is_receiving)
    return value, fetching


async def test_a_value_can_be_fetched_again_after_a_connection_was_cut_in_the_midst_of_it(
    fleet: Fleet, proxies: Proxies
) -> None:
    proxy = proxies.before(fleet.start().target)
    with executor_at(proxy.target) as executor:
        value, fetching = await fetched_half_way(executor, proxy)
        proxy.cut()
        with pytest.raises(WorkerUnavailableError):
            await asyncio.wait_for(fetching, WALL)
        await until(lambda: _is_there(executor))
        np.testing.assert_array_equal(await value.compute(), locally(model_of, np.float32(0.5)))


async def test_a_fetch_that_stalls_fails_after_four_heartbeats(fleet: Fleet, proxies: Proxies) -> None:
    proxy = proxies.before(fleet.start(heartbeat_seconds=0.25).target)
    with executor_at(proxy.target) as executor:
        begun = time.monotonic()
        value, fetching = await fetched_half_way(executor, proxy)
        with pytest.raises(DeadlineExceededError, match="sent no message or heartbeat"):
            await asyncio.wait_for(fetching, WALL)
        assert 0.5 < time.monotonic() - begun < WALL  # a heartbeat every quarter of a second
        proxy.release()
        np.testing.assert_array_equal(await value.compute(), locally(model_of, np.float32(0.5)))


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_round_is_run_again_after_a_connection_was_cut_in_the_midst_of_it(
    fleet: Fleet, proxies: Proxies, direction
) -> None:
    proxy = proxies.before(fleet.start().target)
    inputs = [LARGE * number for number in range(4)] if direction == "up" else [0.1, 0.2, 0.3, 0.4]
    computation = mean_length if direction == "up" else models
    with context_over([proxy.target]):
        doubled_sum([1])
        is_moving = proxy.hold_after(direction, MIDWAY)
        running = Background(lambda: computation(inputs))
        assert is_moving.wait(WALL)
        proxy.cut()
        np.testing.assert_array_equal(running.result(), locally(computation, inputs))


def test_a_round_goes_on_when_a_connection_that_stalled_for_a_moment_moves_again(
    fleet: Fleet, proxies: Proxies, caplog
) -> None:
    proxy = proxies.before(fleet.start(heartbeat_seconds=5.0).target)
    inputs = [LARGE * number for number in range(4)]
    with context_over([proxy.target]):
        is_sending = proxy.hold_after("up", MIDWAY)
        running = Background(lambda: mean_length(inputs))
        assert is_sending.wait(WALL)
        proxy.release()
        assert running.result() == locally(mean_length, inputs)
    assert caplog.records == []


@pytest.mark.long
async def test_a_peer_that_falls_silent_is_noticed_by_every_verb(fleet: Fleet, proxies: Proxies) -> None:
    proxy = proxies.before(fleet.start().target)
    with executor_at(proxy.target, control_seconds=2.0) as executor:
        function = await executor.create_value(double)
        argument = await executor.create_value(np.int32(2), np.int32)
        result = await executor.create_call(function, argument)
        assert await result.compute() == 4
        other = await executor.create_call(function, argument)
        proxy.fall_silent()
        begun = time.monotonic()
        for verb in (executor.create_value(double), other.compute()):
            with pytest.raises((DeadlineExceededError, WorkerUnavailableError)):
                await asyncio.wait_for(verb, WALL)
        begun = time.monotonic()
    assert time.monotonic() - begun < WALL  # for closing


def test_closing_takes_no_longer_for_many_values_at_a_peer_that_is_silent(fleet: Fleet, proxies: Proxies) -> None:
    proxy = proxies.before(fleet.start().target)
    loop = asyncio.new_event_loop()
    with executor_at(proxy.target, dispose_batch_size=1) as executor:

        async def create() -> list[Any]:
            values = [await executor.create_value(np.int32(number), np.int32) for number in range(50)]
            return [await value.compute() for value in values]

        assert loop.run_until_complete(create()) == list(range(50))
        loop.close()
        proxy.fall_silent()
        begun = time.monotonic()
        executor.close()
        begun = time.monotonic()
    assert time.monotonic() - begun < WALL  # for what closing goes on with behind the caller's back


async def test_calls_that_wait_for_others_to_a_silent_peer_fail_with_them(fleet: Fleet, proxies: Proxies) -> None:
    proxy = proxies.before(fleet.start().target)
    connection = GrpcConnection(parse_target(proxy.target), max_calls=2)
    path = "/grpc.health.v1.Health/Check"
    assert await io_loop.run(connection.unary(path, b"", WALL))
    proxy.fall_silent()
    begun = time.monotonic()
    calls = [io_loop.run(connection.unary(path, b"", 2.0)) for _ in range(40)]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WALL)
    assert {type(outcome) for outcome in outcomes} == {DeadlineExceededError}
    assert time.monotonic() - begun < 25  # two at a time, one after the other, it would be forty seconds
    await io_loop.run(connection.close())


async def test_a_new_connection_does_not_begin_with_the_failure_of_an_old_one(fleet: Fleet) -> None:
    worker = fleet.start()
    worker.kill()
    early = stub_to(worker.target)
    for _ in range(5):  # so that it waits for a while before it dials again
        with pytest.raises(WorkerUnavailableError, match="no server is listening"):
            await io_loop.run(early.handshake())
    fleet.restart(worker)
    late = stub_to(worker.target)
    assert await io_loop.run(late.handshake()) is not None
    for stub in (early, late):
        await io_loop.run(stub.close())


@contextlib.contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """Yields the address of a server that takes connections and says nothing, or always the same."""
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            taken.append(connection)
            if answer is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(WALL)
            for connection in taken:
                connection.close()


NOT_GRPC = {
    "nothing": None,
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "noise": bytes(range(256)) * 64,
    "another frame": b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01" * 3,
}


@pytest.mark.parametrize("answer", NOT_GRPC.values(), ids=NOT_GRPC)
def test_a_server_that_is_none_is_an_error_that_names_it(answer) -> None:
    policy = fedstack.RetryPolicy(attempts=2, first_pause=0.01)
    with listener(answer) as target:
        with context_over([target], connect_seconds=0.5, control_seconds=0.5, retry_policy=policy):
            begun = time.monotonic()
            with pytest.raises(NoWorkersError, match=target):
                Background(lambda: doubled_sum([1, 2])).result()
        assert time.monotonic() - begun < WALL


@pytest.mark.parametrize("answer", NOT_GRPC.values(), ids=NOT_GRPC)
async def test_an_executor_at_a_server_that_is_none_fails_in_time(answer) -> None:
    with listener(answer) as target:
        with executor_at(target, control_seconds=0.5) as executor:
            with pytest.raises((WorkerUnavailableError, DeadlineExceededError)):
                await asyncio.wait_for(executor.create_value(np.int32(1), np.int32), WALL)


def test_a_worker_beside_a_server_that_is_none_does_the_work(fleet: Fleet) -> None:
    with listener(None) as target, context_over([target, fleet.start().target], connect_seconds=5.0):
        assert Background(lambda: doubled_sum([1, 2, 3])).result() == 12
        assert Background(lambda: doubled_sum([4, 5])).result() == 18


def test_a_server_whose_certificate_is_not_trusted_is_no_worker_to_wait_for(tmp_path) -> None:
    from certificate_files import write_certificates

    from fedstack.errors import AuthenticationError
    from fedstack.service.executor.executor_service import ExecutorService
    from fedstack.service.host.host import GrpcServer
    from fedstack.service.host.server_thread import ServerThread
    from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials

    files, others = write_certificates(tmp_path / "1"), write_certificates(tmp_path / "2")
    credentials = ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)
    service = ExecutorService(fedstack.local_executor_factory())
    with ServerThread(GrpcServer([service], credentials=credentials)) as server:
        context = fedstack.create_sync_remote_execution_context(
            server.target,
            credentials=ClientCredentials.from_files(root_certificates=others.ca),
            retry_policy=fedstack.RetryPolicy.none(),
        )
        with fedstack.use_context(context), pytest.raises(AuthenticationError, match="a trusted authority"):
            Background(lambda: doubled_sum([1, 2])).result()
        context.close()


async def test_a_half_open_connection_is_replaced_when_the_way_is_free_again(fleet: Fleet, proxies: Proxies) -> None:
    worker = fleet.start()
    proxy = proxies.before(worker.target)
    stub = stub_to(proxy.target, control_seconds=2.0)
    assert await io_loop.run(stub.handshake()) is not None
    proxy.fall_silent()
    with pytest.raises(DeadlineExceededError):
        await io_loop.run(stub.handshake())
    proxy.cut()
    proxy.release()
    await until(lambda: _shakes_hands(stub))
    await io_loop.run(stub.close())


def _shakes_hands(stub: Any) -> bool:
    with contextlib.suppress(WorkerUnavailableError, DeadlineExceededError):
        return io_loop.run_sync(stub.handshake(), WALL) is not None
    return False
