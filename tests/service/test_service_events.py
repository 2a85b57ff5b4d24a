"""What observers are told of servers, sessions, workers and threads."""

import asyncio
import threading
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from calling import call
from echo_service import ECHO, EchoService
from watching import watched

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import FedstackError
from fedstack.observe import (
    CallStarted,
    LeafLoaded,
    LoopStalled,
    RpcEnded,
    SessionClosed,
    SessionOpened,
    WorkCancelled,
    WorkerLost,
    WorkerReady,
)
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.host.status import StallCounts
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)


def new_all() -> Any:
    """Returns a computation with a function that nothing has loaded yet."""

    @fedstack.python_computation([np.int32], np.int32)
    def increment(x: Any) -> Any:
        return x + 1

    @fl.federated_computation(INTS)
    def increment_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(increment, values)

    return increment_all


def test_a_server_tells_of_each_call_with_method_code_and_bytes() -> None:
    with watched() as diary, ServerThread(GrpcServer([EchoService()])) as thread:
        call(thread.server.target, "Unary", b"abc")
        with pytest.raises(FedstackError):
            call(thread.server.target, "/no.Service/Method", b"abcd")
        diary.wait_for(lambda: len(diary.of(RpcEnded)) == 2)
    served, refused = diary.of(RpcEnded)
    assert (served.method, served.code) == (f"{ECHO}/Unary", "OK")
    assert (served.bytes_received, served.bytes_sent) == (3, 3)
    assert served.seconds > 0
    assert (refused.method, refused.code) == ("(other)", "UNIMPLEMENTED")


def test_a_service_tells_of_its_sessions_and_a_fleet_of_its_workers() -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    increment_all = new_all()
    with watched() as diary:
        stub = ExecutorStub(InMemoryConnection(service, "there"))
        with SyncExecutionContext(fedstack.remote_executor_factory([stub])) as context, fedstack.use_context(context):
            assert increment_all([1]) == [2]
        diary.wait_for(lambda: bool(diary.of(SessionClosed)))
    opened, closed = diary.the(SessionOpened), diary.the(SessionClosed)
    assert len(opened.session) == 8
    assert closed.session == opened.session
    assert closed.reason == "its client has ended it"
    assert diary.the(WorkerReady).worker == "there"
    io_loop.run_sync(service.close())


def test_a_leaf_function_is_told_of_when_it_is_loaded_and_not_again() -> None:
    increment_all = new_all()
    context = fedstack.create_sync_local_execution_context()
    with watched() as diary, context, fedstack.use_context(context):
        increment_all([1])
        increment_all([1])
    loaded = diary.the(LeafLoaded)
    assert loaded.name.endswith("increment")
    assert loaded.carrier == "fedstack.v1.PythonHandle"
    assert loaded.seconds > 0


def test_work_that_goes_on_although_it_was_cancelled_is_told_of() -> None:
    begun, gate = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hang(x: Any) -> Any:
        begun.set()
        assert gate.wait(LIMIT)
        return x

    @fl.federated_computation(INTS)
    def hang_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(hang, values)

    async def main() -> None:
        with fedstack.use_context(fedstack.create_async_local_execution_context()):
            task = asyncio.ensure_future(hang_all([1]))
            await asyncio.to_thread(begun.wait, LIMIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with watched() as diary:
        asyncio.run(main())
        diary.wait_for(lambda: bool(diary.of(WorkCancelled)))
        gate.set()
    assert diary.of(WorkCancelled)[0].call == diary.the(CallStarted).call


def test_a_loop_that_stood_still_is_told_of_each_time() -> None:
    now = [0.0]
    counts = StallCounts(lambda: now[0])
    with watched() as diary:
        for late in (0.5, 0.0, 2.0):
            counts.expect(1.0)
            now[0] += 1.0 + late
            counts.beat()
    assert [round(event.seconds, 3) for event in diary.of(LoopStalled)] == [0.5, 2.0]


def test_the_loss_of_a_worker_is_told_of_with_its_cause() -> None:
    class Gone(InMemoryConnection):
        def exchange(self, path: str, parcel: Any) -> Any:
            raise fedstack.errors.WorkerUnavailableError("the cable is cut\nmore")

    service = ExecutorService(fedstack.local_executor_factory())
    stub = ExecutorStub(Gone(service, "there"))
    context = SyncExecutionContext(
        fedstack.remote_executor_factory([stub]), retry_policy=fedstack.RetryPolicy(attempts=1)
    )
    with watched() as diary, context, fedstack.use_context(context), pytest.raises(FedstackError):
        new_all()([1])
    lost = diary.the(WorkerLost)
    assert (lost.worker, lost.error, lost.reason) == ("there", "WorkerUnavailableError", "the cable is cut")
    io_loop.run_sync(service.close())
