"""Contexts, stubs and executors for tests of faults, and what runs and waits beside a test; nothing waits for ever."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from fault_leaves import KNOCK, PID

import fedstack
from fedstack.computations.types.language import CLIENTS, get_context_stack
from fedstack.contexts import SyncExecutionContext
from fedstack.executors import RemoteExecutor
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target

WALL = 30.0
_T = TypeVar("_T")


def stub_to(target: str, control_seconds: float = 5.0, **options: Any) -> ExecutorStub:
    return ExecutorStub(FoundConnection(parse_target(target)), control_seconds=control_seconds, **options)


@contextlib.contextmanager
def context_over(
    targets: Sequence[str | ExecutorStub],
    *,
    control_seconds: float = 5.0,
    retry_policy: fedstack.RetryPolicy | None = None,
    client_failures: fedstack.ClientFailures | None = None,
    **options: Any,
) -> Iterator[SyncExecutionContext]:
    """Runs computations of the block over workers, which are given by their addresses or by stubs."""
    stubs = [stub_to(target, control_seconds) if isinstance(target, str) else target for target in targets]
    factory = fedstack.remote_executor_factory(stubs, **options)
    context = SyncExecutionContext(factory, retry_policy=retry_policy, client_failures=client_failures)
    try:
        with fedstack.use_context(context):
            yield context
    finally:
        context.close()


@contextlib.contextmanager
def executor_at(
    target: str,
    clients: int = 0,
    control_seconds: float = 5.0,
    *,
    extensions: bool = True,
    sends_code: bool = False,
    **options: Any,
) -> Iterator[RemoteExecutor]:
    """Yields a remote executor; it and its connection are closed after the block."""
    stub = stub_to(target, control_seconds, extensions=extensions, sends_code=sends_code)
    executor = RemoteExecutor(stub, **options)
    executor.set_cardinalities({CLIENTS: clients})
    try:
        yield executor
    finally:
        executor.close()
        io_loop.run_sync(stub.close(), WALL)


def locally(computation: Any, *arguments: Any) -> Any:
    """Returns what a computation gives without workers."""
    context = fedstack.create_sync_local_execution_context()
    try:
        with fedstack.use_context(context):
            return computation(*arguments)
    finally:
        context.close()


def status_of(target: str) -> GetStatusResponse:
    """Asks a server what it holds, over a connection of its own."""

    async def ask() -> GetStatusResponse:
        stub = stub_to(target)
        try:
            return await stub.get_status()
        finally:
            await stub.close()

    return io_loop.run_sync(ask(), WALL)


def eventually(look: Callable[[], Any], seconds: float = WALL) -> None:
    """Returns when something has become true that only asking can tell, such as what another process holds."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {found!r}"
        threading.Event().wait(0.01)


class Background(Generic[_T]):
    """Runs something on a thread, in the context of whoever starts it."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._outcome: list[_T] = []
        self._error: Exception | None = None
        context = get_context_stack().current
        self._thread = threading.Thread(target=self._run, args=(context,), name="background")
        self._thread.start()

    def _run(self, context: Any) -> None:
        try:
            with fedstack.use_context(context):
                self._outcome.append(self._work())
        except Exception as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = WALL) -> _T:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"no end within {seconds} s"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._outcome[0]


class Door:
    """Where client functions (`fault_leaves.visit`) wait until the test lets them in.

    Attributes:
      port: Its number is what the functions need to know.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, socket.socket]] = []
        self._is_open = False
        self.visitors: list[int] = []
        self._thread = threading.Thread(target=self._serve, name="door")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(WALL)
            content = b""
            with contextlib.suppress(OSError):  # the process of a function may be killed
                content = connection.recv(len(KNOCK) + PID.size, socket.MSG_WAITALL)
            with self._changed:
                # Others come too: clients of other tests that dial a server which was at this port before.
                process = -1
                if content.startswith(KNOCK) and len(content) == len(KNOCK) + PID.size:
                    process = PID.unpack_from(content, len(KNOCK))[0]
                    self.visitors.append(process)
                if self._is_open:
                    connection.close()
                else:
                    self._waiting.append((process, connection))
                self._changed.notify_all()

    def wait_for(self, running: "Background[Any]", *processes: int) -> None:
        """Returns when a function has come from each of these processes; what runs should make them come.

        Without processes, it returns when any function has come.
        """
        deadline = time.monotonic() + WALL
        with self._changed:
            while not self.visitors or not set(processes) <= set(self.visitors):
                if running.ended:
                    raise AssertionError(f"ended, and did not wait: {running.result()!r}")
                assert time.monotonic() < deadline, f"came: {self.visitors}, not all of {processes}"
                self._changed.wait(0.1)

    def open(self) -> None:
        """Lets all in, now and later."""
        with self._changed:
            self._is_open = True
            while self._waiting:
                self._waiting.pop()[1].close()

    def let_in(self, process: int) -> None:
        """Lets the functions of one process in that wait now."""
        with self._changed:
            for one in [one for one in self._waiting if one[0] == process]:
                self._waiting.remove(one)
                one[1].close()

    def close(self) -> None:
        self.open()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WALL)
