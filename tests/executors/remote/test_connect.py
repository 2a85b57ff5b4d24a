"""`RemoteExecutor.connect`: in one line to a worker, which may be away, and back from it."""

import asyncio
import contextlib
import logging
import re
import socket
import threading

import federated_language as fl
import numpy as np
import pytest
from grpc_fixture import grpc_is_up as grpc_is_up

import fedstack
from fedstack.errors import AuthenticationError, ClosedError, InvalidValueError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.membership import reaching
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x + x


@fl.federated_computation(INTS)
def total(values):
    return fl.federated_sum(fl.federated_map(double, values))


@contextlib.contextmanager
def worker(port=0, **options):
    """Serves on a thread of this process for the duration of the block; yields the service and its address."""
    service = ExecutorService(fedstack.local_executor_factory())
    with ServerThread(GrpcServer([service], port=port, **options)) as thread:
        yield service, thread.target


@contextlib.contextmanager
def dead_address():
    """An address at which nothing listens for the duration of the block."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def called(executor: RemoteExecutor) -> object:
    executor.set_cardinalities({fl.CLIENTS: 3})
    function = await executor.create_value(total)
    argument = await executor.create_value([1, 2, 3], INTS)
    return await (await executor.create_call(function, argument)).compute()


async def test_an_executor_connects_when_it_is_entered_and_leaves_nothing_behind():
    with worker() as (service, target):
        async with RemoteExecutor.connect(target) as executor:
            assert await called(executor) == 12
            assert len(service.status().session) == 1
        assert not service.status().session
        with pytest.raises(ClosedError, match="closed"):
            await called(executor)
        with pytest.raises(ClosedError, match="This RemoteExecutor is closed; create a new one"):
            await executor.__aenter__()
        with pytest.raises(ClosedError, match="is closed"):
            await io_loop.run(executor.stub.handshake())


def test_an_executor_connects_when_it_is_first_used():
    with worker() as (service, target):
        with RemoteExecutor.connect(target, stream_structs=True, dispose_batch_size=3) as executor:
            assert asyncio.run(called(executor)) == 12
        assert not service.status().session
        executor = RemoteExecutor.connect(target)
        assert asyncio.run(called(executor)) == 12
        executor.close()
        executor.close()
        assert not service.status().session


async def test_blocks_inside_each_other_share_the_connection():
    with worker() as (_, target):
        async with RemoteExecutor.connect(target) as executor:
            async with executor:
                assert await called(executor) == 12
            assert await called(executor) == 12

            async def in_a_block():
                async with executor:
                    return await (await executor.create_value(7, np.int32)).compute()

            assert await asyncio.gather(*(in_a_block() for _ in range(5))) == [7] * 5
        with pytest.raises(ClosedError):
            await called(executor)


async def test_a_dead_address_is_an_error_when_it_is_entered_or_used_and_not_before(caplog):
    with dead_address() as target:
        for _ in range(2):
            with pytest.raises(WorkerUnavailableError, match=f"{target}.*no server is listening"):
                async with RemoteExecutor.connect(target, connect_seconds=0.5):
                    raise AssertionError("Expected nobody there, found somebody")
        executor = RemoteExecutor.connect(target, connect_seconds=0.5)
        for _ in range(2):
            with pytest.raises(WorkerUnavailableError, match=f"{target}.*no server is listening"):
                await called(executor)
        assert not caplog.records
        executor.close()


async def test_a_worker_that_comes_is_waited_for_and_the_wait_is_announced(monkeypatch):
    monkeypatch.setattr(reaching, "QUIET_SECONDS", 0.1)
    with dead_address() as target:
        pass
    heard, said = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    class Listener(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())
            loop.call_soon_threadsafe(said.set)

    logging.getLogger("fedstack").addHandler(listener := Listener())
    executor = RemoteExecutor.connect(target, connect_seconds=LIMIT)
    try:
        calling = asyncio.ensure_future(called(executor))
        await asyncio.wait_for(said.wait(), LIMIT)
        assert re.match(rf"Waiting for the worker at .* for at most {LIMIT:g} s: .*no server is listening", heard[0])
        assert target in heard[0]
        with worker(port=int(target.rpartition(":")[2])):
            assert await asyncio.wait_for(calling, LIMIT) == 12
            await asyncio.to_thread(executor.close)
    finally:
        logging.getLogger("fedstack").removeHandler(listener)
        executor.close()


async def test_a_worker_that_was_away_is_used_when_it_is_back():
    with dead_address() as target:
        executor = RemoteExecutor.connect(target, connect_seconds=0.1)
        with pytest.raises(WorkerUnavailableError):
            await called(executor)
    executor._sessions.connect_seconds = LIMIT
    for _ in range(2):
        with worker(port=int(target.rpartition(":")[2])):
            assert await asyncio.wait_for(called(executor), LIMIT) == 12
    await asyncio.to_thread(executor.close)


@pytest.mark.parametrize("token", [None, "other"])
async def test_credentials_are_given_with_the_address(token):
    credentials = fedstack.ClientCredentials(token="secret")
    with worker(credentials=ServerCredentials(tokens=("secret",))) as (_, target):
        async with RemoteExecutor.connect(target, credentials) as executor:
            assert await called(executor) == 12
        wrong = None if token is None else fedstack.ClientCredentials(token=token)
        with pytest.raises(AuthenticationError, match="token"):
            async with RemoteExecutor.connect(target, wrong):
                raise AssertionError("Expected to be kept out, found to be let in")


async def test_an_executor_that_is_left_while_a_call_runs_says_so():
    begun, end = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def wait(x):
        begun.set()
        assert end.wait(LIMIT)
        return x

    with worker() as (service, target):
        async with RemoteExecutor.connect(target) as executor:
            executor.set_cardinalities({})
            function = await executor.create_value(wait)
            made = await executor.create_call(function, await executor.create_value(1, np.int32))
            running = asyncio.ensure_future(made.compute())
            assert await asyncio.to_thread(begun.wait, LIMIT)
        with pytest.raises(ClosedError, match="closed during a call"):
            await asyncio.wait_for(running, LIMIT)
        end.set()
        assert not service.status().session


async def test_an_executor_that_is_closed_while_it_connects_says_so():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        executor = RemoteExecutor.connect(f"127.0.0.1:{silent.getsockname()[1]}", connect_seconds=LIMIT)
        connecting = asyncio.ensure_future(called(executor))
        peer, _ = await asyncio.to_thread(silent.accept)
        with peer:
            await asyncio.to_thread(executor.close)
            with pytest.raises(ClosedError, match="closed"):
                await asyncio.wait_for(connecting, LIMIT)


async def test_a_stub_of_ones_own_is_closed_with_the_executor_too():
    stub = ExecutorStub(InMemoryConnection(ExecutorService(fedstack.local_executor_factory())), keeps_handles=True)
    async with RemoteExecutor.connect(stub) as executor:
        assert await called(executor) == 12
    with pytest.raises(ClosedError):
        await io_loop.run(stub.handshake())


@pytest.mark.parametrize(
    ("target", "options", "kind", "message"),
    [
        ("localhost", {}, InvalidValueError, "a port"),
        (
            ["localhost:1", "localhost:2"],
            {},
            InvalidValueError,
            "Expected one worker, found 2 workers; pass the address",
        ),
        ([], {}, InvalidValueError, "Expected one worker, found 0"),
        (3, {}, InvalidValueError, "Expected the address of a worker, as in 'localhost:8000', .*found int 3"),
        ("localhost:1", {"credentials": "secret"}, InvalidValueError, r"found str; .*ClientCredentials\(token=...\)"),
        ("localhost:1", {"connect_secs": 1}, TypeError, "found connect_secs; write connect_seconds"),
        ("localhost:1", {"num_clients": 1}, TypeError, "found num_clients; remove it"),
        ("localhost:1", {"connect_seconds": -1}, InvalidValueError, "Expected connect_seconds of at least 0, found -1"),
        ("localhost:1", {"connect_seconds": "1"}, InvalidValueError, "Expected connect_seconds .*found str '1'"),
        ("localhost:1", {"dispose_batch_size": 0}, InvalidValueError, "dispose_batch_size of at least 1"),
        ("localhost:1", {"stream_structs": 2}, InvalidValueError, "stream_structs to be True or False"),
    ],
)
def test_what_cannot_be_is_refused_at_once(target, options, kind, message):
    with pytest.raises(kind, match=message):
        RemoteExecutor.connect(target, **options)
