"""A service in this process, a remote executor at it, and between them a connection that keeps what goes over it."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator

import pytest
from recording_connection import RecordingConnection

import fedstack
from fedstack.computations.types.language import CLIENTS
from fedstack.executors import RemoteExecutor
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

WALL = 20.0


@pytest.fixture(scope="session", autouse=True)
def transport_is_up() -> None:
    """Starts the transport's thread before the first test does, or the check for leaks would find it."""
    io_loop.run_sync(asyncio.sleep(0))


@pytest.fixture(autouse=True)
def the_collector_looks_at_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps thousands of collected tests out of each `gc.collect()`, as the check for leaks does where it is on."""
    mark = request.node.get_closest_marker("fedstack_leak_check")
    if mark is None or mark.args != (False,):
        yield
        return
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def service() -> Iterator[ExecutorService]:
    made = ExecutorService(fedstack.local_executor_factory())
    yield made
    io_loop.run_sync(made.close())


@pytest.fixture
def connection(service: ExecutorService) -> RecordingConnection:
    return RecordingConnection(service)


@pytest.fixture
def make_remote(connection: RecordingConnection) -> Iterator[Callable[..., RemoteExecutor]]:
    """Makes remote executors, which are closed after the test."""
    made: list[RemoteExecutor] = []

    def make(clients: int = 3, *, extensions: bool = True, **options) -> RemoteExecutor:
        stub = ExecutorStub(connection, extensions=extensions, keeps_handles=True)
        executor = RemoteExecutor(stub, **options)
        executor.set_cardinalities({CLIENTS: clients})
        made.append(executor)
        return executor

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def executor(make_remote) -> RemoteExecutor:
    return make_remote()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], "asyncio.Future[None]"]:
    """Waits until something is so, at most for a while."""

    async def wait(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WALL
        while not is_so():
            assert time.monotonic() < deadline, "it did not come about in time"
            await asyncio.sleep(0.01)

    return wait
