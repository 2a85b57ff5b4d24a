"""Every call of a session is a sign of life of its client."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

import fedstack
from fedstack.errors import FedstackError, StaleSessionError
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import ExchangeMethod, UploadMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

LEASE_SECONDS = 50.0
REQUESTS: dict[str, type[Any]] = {
    "CreateValue": plain.CreateValueRequest,
    "CreateCall": plain.CreateCallRequest,
    "CreateStruct": plain.CreateStructRequest,
    "CreateSelection": plain.CreateSelectionRequest,
    "Compute": plain.ComputeRequest,
    "Dispose": plain.DisposeRequest,
    "RenewLease": extended.RenewLeaseRequest,
    "Evaluate": extended.EvaluateRequest,
    "Start": extended.StartRequest,
    "Update": extended.UpdateRequest,
    "RunPhase": extended.PhaseRequest,
    "ShortenPhase": extended.ShortenPhaseRequest,
}
WITHOUT_SESSION = {"GetExecutor", "DisposeExecutor", "Handshake", "OpenSession", "FindStores"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> Iterator[ExecutorService]:
    made = ExecutorService(fedstack.local_executor_factory(), clock=clock)
    yield made
    io_loop.run_sync(made.close())


async def call(service: ExecutorService, method: str, request: Message) -> bytes:
    """Makes a call of any kind with one message; of what it yields only the last is of interest."""
    connection = InMemoryConnection(service)
    (path,) = (f"/{name}/{method}" for name, methods in service.methods.items() if method in methods)
    kind = service.methods[path.split("/")[1]][method]
    content = request.SerializeToString()
    if isinstance(kind, UploadMethod):
        return await connection.upload(path, Parcel(content), None)
    if isinstance(kind, ExchangeMethod):
        return await Incoming(connection.exchange(path, Parcel(content)), on_heartbeat=lambda beat: None).header()
    return await connection.unary(path, content, None)


async def open_session(service: ExecutorService) -> plain.ExecutorId:
    request = extended.OpenSessionRequest(lease_seconds=LEASE_SECONDS)
    answer = await call(service, "OpenSession", request)
    return extended.OpenSessionResponse.FromString(answer).executor


def request_of(method: str, executor: plain.ExecutorId) -> Message:
    several = method == "RenewLease"
    return REQUESTS[method](executor=[executor] if several else executor)


def test_no_method_is_forgotten_here(service: ExecutorService) -> None:
    methods = {*service.methods[EXECUTOR_GROUP], *service.methods[EXTENSIONS]}
    assert set(REQUESTS) | WITHOUT_SESSION == methods


@pytest.mark.parametrize("method", REQUESTS)
def test_any_call_of_a_session_renews_its_lease_even_one_that_fails(
    service: ExecutorService, clock: Clock, method: str
) -> None:
    async def run() -> None:
        executor = await open_session(service)
        for _ in range(3):
            clock.now += LEASE_SECONDS - 1
            try:
                await call(service, method, request_of(method, executor))
            except FedstackError as error:
                assert not isinstance(error, StaleSessionError)
            (session,) = service.status().session
            assert session.lease_seconds_left == LEASE_SECONDS

    io_loop.run_sync(run(), 20)


@pytest.mark.parametrize("method", REQUESTS)
def test_no_call_brings_a_session_back_whose_lease_has_run_out(
    service: ExecutorService, clock: Clock, method: str
) -> None:
    async def run() -> None:
        executor = await open_session(service)
        clock.now += LEASE_SECONDS
        if method in ("Dispose", "RenewLease"):
            await call(service, method, request_of(method, executor))
        else:
            with pytest.raises(StaleSessionError):
                await call(service, method, request_of(method, executor))
        assert [session.lease_seconds_left for session in service.status().session] in ([], [0.0])

    io_loop.run_sync(run(), 20)
