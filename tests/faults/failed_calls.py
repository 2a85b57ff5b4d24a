"""Run as a script: fails in each way it is told again and again without the garbage collector, and says what was kept.

Each way is a generator that yields what fails once, with arrays of 16 MiB. Client and server are in this process unless
it is about a worker's end.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import psutil

import fedstack
from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import CLIENTS
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.executors import RemoteExecutor
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.service import local_worker_pool
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS, ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import Data
from fedstack.transport.wire.parcels import Parcel

WALL = 30.0
MIB = 1 << 20
LARGE = fl.TensorType(np.float32, [4 * MIB])
BYTES = 16 * MIB
FLOAT = fl.TensorType(np.float32)
LARGE_AT_CLIENTS = fl.FederatedType(LARGE, fl.CLIENTS)
Fail = Callable[[], object]
Way = Callable[[], Iterator[Fail]]
WARM_UP, TIMES = 2, 6
# Each time costs a process that starts.
TIMES_OF_WORKERS = 4
MOST_BYTES = 3 * BYTES
SETTLING_SECONDS = 10.0
MOST_SECONDS = 100.0


def array() -> Any:
    return np.ones(LARGE.shape, np.float32)


class Expected(Exception):
    """What a way's own functions raise."""


@fedstack.python_computation([LARGE], FLOAT)
def raises(x):
    copy = x + 1
    raise Expected(f"for {copy[0]}")


@fedstack.python_computation([LARGE], LARGE)
def grows(x):
    return x + 1


@fedstack.python_computation([LARGE], FLOAT)
def ends_the_process(x):
    os._exit(3)


@fedstack.python_computation([FLOAT], LARGE)
def returns_large(x):
    return array()


waiting = threading.Event()
go_on = threading.Event()


@fedstack.python_computation([LARGE], FLOAT)
def waits(x):
    waiting.set()
    go_on.wait(WALL)
    return x[0]


@fl.federated_computation(LARGE)
def at_the_server(x):
    return raises(grows(x))


@fl.federated_computation(LARGE_AT_CLIENTS)
def at_clients(xs):
    return fl.federated_sum(fl.federated_map(raises, fl.federated_map(grows, xs)))


@fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS), fl.FederatedType(LARGE, fl.SERVER))
def with_captured_values(xs, model):
    @fl.federated_computation(FLOAT, LARGE)
    def work(x, captured):
        return raises(captured)

    return fl.federated_sum(fl.federated_map(work, (xs, fl.federated_broadcast(model))))


@fl.federated_computation(LARGE, LARGE)
def side_by_side(x, y):
    return raises(grows(x)), raises(grows(y))


@fl.federated_computation(LARGE_AT_CLIENTS)
def accumulated(xs):
    zero = np.zeros((), np.float32)

    @fedstack.python_computation([FLOAT, LARGE], FLOAT)
    def accumulate(total, x):
        raise Expected("at once")

    @fedstack.python_computation([FLOAT, FLOAT], FLOAT)
    def merge(x, y):
        return x

    @fedstack.python_computation([FLOAT], FLOAT)
    def report(x):
        return x

    return fl.federated_aggregate(xs, float(zero), accumulate, merge, report)


@contextlib.contextmanager
def server(**limits: Any) -> Iterator[str]:
    service = ExecutorService(
        fedstack.local_executor_factory(),
        limits=ServiceLimits(heartbeat_seconds=0.25, **limits),
        policy=CarrierPolicy(modules=["*"], python_code=True),
    )
    with ServerThread(GrpcServer([service])) as running:
        yield running.target


@contextlib.contextmanager
def connection(target: str) -> Iterator[GrpcConnection]:
    made = GrpcConnection(parse_target(target))
    yield made
    io_loop.run_sync(made.close())


def failing(work: Callable[[], object], *kinds: type[BaseException]) -> Fail:
    """Returns what does some work that has to fail."""

    def fail() -> None:
        try:
            work()
        except kinds or Exception:  # noqa: B030
            return
        raise AssertionError("Expected the call to fail, found that it did not")

    return fail


def failing_async(work: Callable[[], Awaitable[object]], *kinds: type[BaseException], on: Any = asyncio.run) -> Fail:
    """Returns the same for work on an event loop; what starts that would keep errors in circles of its own."""

    async def fail() -> None:
        try:
            await work()
        except kinds or Exception:  # noqa: B030
            return
        raise AssertionError("Expected the call to fail, found that it did not")

    return lambda: on(fail())


def failing_on_the_loop(work: Callable[[], Awaitable[object]], *kinds: type[BaseException]) -> Fail:
    return failing_async(work, *kinds, on=lambda coroutine: io_loop.run_sync(coroutine, WALL))


def upload_of(sent: int | None, **limits: Any) -> Iterator[Fail]:
    """An upload of which only so many bytes come; of all of them it is too large, or of the wrong type."""
    with server(**limits) as target, connection(target) as way:
        stub = ExecutorStub(way)

        async def upload() -> None:
            session = await stub.open_session(extended.OpenSessionRequest())
            packer = Packer(stub.chunking.large_bytes)
            typed = extended.TypedValue(type=LARGE.to_proto())
            packer.pack(typed.value, array(), LARGE)
            creation = extended.Creation(id="mine", value=typed)
            header = extended.EvaluateRequest(executor=session.executor, creation=[creation])
            try:
                async with stub.exchange(
                    f"/{EXTENSIONS}/Evaluate", header, [memoryview(b"".join(packer.segments))[:sent]], WALL
                ) as answer:
                    await answer.header()
            finally:
                await stub.dispose_executor(plain.DisposeExecutorRequest(executor=session.executor))

        yield failing_on_the_loop(upload)


def an_upload_that_is_cut_short() -> Iterator[Fail]:
    yield from upload_of(BYTES - MIB)


def an_upload_beyond_a_limit() -> Iterator[Fail]:
    yield from upload_of(None, max_session_bytes=MIB)


def a_value_beyond_a_limit() -> Iterator[Fail]:
    yield from upload_of(None, max_value_bytes=MIB)


def garbage(path: str) -> Iterator[Fail]:
    with server() as target, connection(target) as way:
        yield failing_on_the_loop(lambda: way.unary(path, b"\xff" * BYTES, WALL))


def garbage_for_the_service() -> Iterator[Fail]:
    yield from garbage(f"/{EXECUTOR_GROUP}/CreateValue")


def garbage_for_the_extensions() -> Iterator[Fail]:
    yield from garbage(f"/{EXTENSIONS}/EvaluateWhole")


def garbage_for_a_phase() -> Iterator[Fail]:
    async def exchange(way: GrpcConnection) -> None:
        async for _ in way.exchange(f"/{EXTENSIONS}/RunPhase", Parcel(b"\xff" * BYTES)):
            pass

    with server() as target, connection(target) as way:
        yield failing_on_the_loop(lambda: exchange(way))


def a_value_of_another_type() -> Iterator[Fail]:
    """It is refused by the peer, which finds out when it has it all."""
    with server() as target, connection(target) as way:
        stub = ExecutorStub(way)
        value = plain.Value()
        value.struct.element.add().value.array.content = b"\0" * BYTES
        session = io_loop.run_sync(stub.open_session(extended.OpenSessionRequest()))
        request = plain.CreateValueRequest(executor=session.executor, value=value)
        yield failing_on_the_loop(lambda: stub.create_value(request))


@contextlib.contextmanager
def executor_at(target: str, **options: Any) -> Iterator[RemoteExecutor]:
    with connection(target) as way:
        executor = RemoteExecutor(ExecutorStub(way), dispose_batch_size=1, **options)
        executor.set_cardinalities({CLIENTS: 1})
        yield executor
        executor.close()


async def call(executor: RemoteExecutor, function: Any, argument: Any, type_spec: Any) -> Any:
    made = await executor.create_value(function)
    return await executor.create_call(made, await executor.create_value(argument, type_spec))


def at_an_executor(work: Callable[[RemoteExecutor], Awaitable[object]], *kinds: type[BaseException], **options: Any):
    with server() as target, executor_at(target, **options) as executor:
        yield failing_async(lambda: work(executor), *kinds)


def a_leaf_of_a_remote_executor() -> Iterator[Fail]:
    async def work(executor: RemoteExecutor) -> None:
        await (await call(executor, raises, array(), LARGE)).compute()

    yield from at_an_executor(work)


def an_argument_that_does_not_fit() -> Iterator[Fail]:
    async def work(executor: RemoteExecutor) -> None:
        await call(executor, raises, np.ones(4 * MIB + 1, np.float32), fl.TensorType(np.float32, [None]))

    yield from at_an_executor(work)


def a_value_that_does_not_fit() -> Iterator[Fail]:
    async def work(executor: RemoteExecutor) -> None:
        await executor.create_value([array(), array()], LARGE_AT_CLIENTS)

    yield from at_an_executor(work)


STRUCT = fl.StructType([("a", LARGE), ("b", [("c", FLOAT), ("d", FLOAT)])])


def a_struct_that_is_streamed() -> Iterator[Fail]:
    @fedstack.python_computation([STRUCT], FLOAT)
    def fails(x):
        raise Expected("at once")

    async def work(executor: RemoteExecutor) -> None:
        await (await call(executor, fails, {"a": array(), "b": {"c": 1.0, "d": 2.0}}, STRUCT)).compute()

    yield from at_an_executor(work, stream_structs=True)


async def cancelled(value: Any, when: threading.Event) -> None:
    """Computes a value, and cancels that when something happens; raises what comes of it."""
    computing = asyncio.ensure_future(value.compute())
    await asyncio.to_thread(when.wait, WALL)
    computing.cancel()
    go_on.set()
    try:
        await computing
    finally:
        del computing


def a_call_that_is_cancelled() -> Iterator[Fail]:
    async def work(executor: RemoteExecutor) -> None:
        waiting.clear()
        go_on.clear()
        called = await call(executor, waits, array(), LARGE)
        await cancelled(called, waiting)

    yield from at_an_executor(work, asyncio.CancelledError)


def a_call_that_takes_too_long() -> Iterator[Fail]:
    async def work(executor: RemoteExecutor) -> None:
        waiting.clear()
        go_on.clear()
        called = await call(executor, waits, array(), LARGE)
        try:
            await asyncio.wait_for(called.compute(), 0.1)
        except asyncio.TimeoutError:
            raise asyncio.TimeoutError from None  # its own has a circle
        finally:
            go_on.set()

    yield from at_an_executor(work, asyncio.TimeoutError)


def an_upload_that_takes_too_long() -> Iterator[Fail]:
    with server() as target, connection(target) as way:
        yield failing_on_the_loop(lambda: way.unary(f"/{EXECUTOR_GROUP}/CreateValue", b"\0" * BYTES, 0.001))


def a_download_that_is_broken_off() -> Iterator[Fail]:
    with server() as target, connection(target) as way:
        executor = RemoteExecutor(ExecutorStub(Watched(way)), dispose_batch_size=1)
        executor.set_cardinalities({CLIENTS: 0})

        async def work() -> None:
            chunk_came.clear()
            await cancelled(await call(executor, returns_large, 1.0, FLOAT), chunk_came)

        yield failing_async(work, asyncio.CancelledError)
        executor.close()


chunk_came = threading.Event()


class Watched:
    """A connection that tells when the first chunk of a stream has come."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Any:
        answer = await self._connection.ask(path, parcel, timeout, who)
        return answer if isinstance(answer, Parcel) else self._watched(answer)

    async def _watched(self, pieces: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async for piece in pieces:
            yield piece
            if isinstance(piece, Data) and len(piece.data) > MIB // 2:
                chunk_came.set()
                await asyncio.sleep(0.5)  # it is cancelled in this time, or in that of a later chunk


@contextlib.contextmanager
def installed(context: SyncExecutionContext | AsyncExecutionContext) -> Iterator[None]:
    with fedstack.use_context(context):
        yield
    context.close()


ARGUMENTS: dict[Any, Callable[[], list[Any]]] = {
    at_the_server: lambda: [array()],
    at_clients: lambda: [[array()]],
    with_captured_values: lambda: [[1.0, 2.0], array()],
    side_by_side: lambda: [array(), array()],
    accumulated: lambda: [[array()]],
}


def in_a_context(make: Callable[[], Any], computation: Any, *kinds: type[BaseException]) -> Iterator[Fail]:
    context = make()
    with installed(context):
        if isinstance(context, SyncExecutionContext):
            yield failing(lambda: computation(*ARGUMENTS[computation]()), *kinds)
            return

        yield failing_async(lambda: computation(*ARGUMENTS[computation]()), *kinds)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "sync": fedstack.create_sync_local_execution_context,
    "async": fedstack.create_async_local_execution_context,
}
COMPUTATIONS = {
    "at the server": at_the_server,
    "at clients": at_clients,
    "with captured values": with_captured_values,
    "side by side": side_by_side,
    "accumulated": accumulated,
}


def local(context: str, computation: str) -> Way:
    return lambda: in_a_context(CONTEXTS[context], COMPUTATIONS[computation])


def remote(is_async: bool, computation: str) -> Way:
    def way() -> Iterator[Fail]:
        make = (
            fedstack.create_async_remote_execution_context
            if is_async
            else fedstack.create_sync_remote_execution_context
        )
        with server() as one, server() as other:
            yield from in_a_context(lambda: make([one, other]), COMPUTATIONS[computation])

    return way


def another_argument() -> Iterator[Fail]:
    with installed(fedstack.create_sync_local_execution_context()):
        yield failing(lambda: at_the_server(np.ones(4 * MIB + 1, np.float32)))


def a_call_that_is_tried_again() -> Iterator[Fail]:
    @fedstack.python_computation([LARGE], FLOAT)
    def wants_another_attempt(x):
        raise fl.framework.RetryableError("not now")

    @fl.federated_computation(LARGE_AT_CLIENTS)
    def tried_again(xs):
        return fl.federated_sum(fl.federated_map(wants_another_attempt, fl.federated_map(grows, xs)))

    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.0)
    with installed(fedstack.create_sync_local_execution_context(retry_policy=policy)):
        yield failing(lambda: tried_again([array()]), fedstack.errors.RetryLimitError)


def a_worker_that_ends() -> Iterator[Fail]:
    @fl.federated_computation(LARGE_AT_CLIENTS)
    def ends(xs):
        return fl.federated_sum(fl.federated_map(ends_the_process, xs))

    def fail() -> None:
        with local_worker_pool(1, respawn=False) as pool:
            context = fedstack.create_sync_remote_execution_context(pool, retry_policy=fedstack.RetryPolicy.none())
            with installed(context):
                failing(lambda: ends([array()]), fedstack.errors.WorkerUnavailableError)()

    yield fail


def a_leaf_at_a_pool() -> Iterator[Fail]:
    with local_worker_pool(1) as pool:
        with installed(fedstack.create_sync_remote_execution_context(pool)):
            yield failing(lambda: at_clients([array()]))


WAYS: dict[str, Way] = {
    way.__name__.replace("_", " "): way
    for way in (
        an_upload_that_is_cut_short,
        an_upload_beyond_a_limit,
        a_value_beyond_a_limit,
        garbage_for_the_service,
        garbage_for_the_extensions,
        garbage_for_a_phase,
        a_value_of_another_type,
        a_leaf_of_a_remote_executor,
        an_argument_that_does_not_fit,
        a_value_that_does_not_fit,
        a_struct_that_is_streamed,
        a_call_that_is_cancelled,
        a_call_that_takes_too_long,
        an_upload_that_takes_too_long,
        a_download_that_is_broken_off,
        another_argument,
        a_call_that_is_tried_again,
        a_worker_that_ends,
        a_leaf_at_a_pool,
    )
}
WAYS |= {f"{context}, {name}": local(context, name) for context in CONTEXTS for name in COMPUTATIONS}
WAYS |= {f"{'async' if a else 'sync'} remote, {name}": remote(a, name) for a in (True, False) for name in COMPUTATIONS}


def resident() -> int:
    """Returns the memory of this process and of its workers; without what malloc keeps, where it can be told to."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    return sum(each.memory_info().rss for each in [process, *process.children()])


def grown_since(before: int) -> int:
    """Returns by how much memory has grown when what cancelled work leaves behind has gone as well."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while (grown := resident() - before) > MOST_BYTES and time.monotonic() < deadline:
        time.sleep(0.05)
    return grown


def circles_of(fail: Fail) -> list[str]:
    """Lists what a failing call leaves in reference cycles that has something of size."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    fail()
    gc.collect()
    gc.set_debug(0)
    garbage = [*gc.garbage]
    gc.garbage.clear()
    large = [thing for thing in garbage if any(size_of(held) > MIB for held in gc.get_referents(thing))]
    return sorted({f"{type(thing).__name__} {thing!r}"[:200] for thing in large})


def size_of(thing: object) -> int:
    if isinstance(thing, (bytes, bytearray)):
        return len(thing)
    return thing.nbytes if isinstance(thing, (np.ndarray, memoryview)) else 0


def kept_by(way: Way) -> dict[str, Any]:
    """Fails in one way, and returns what that has kept."""
    kept: dict[str, Any] = {}
    for fail in way():
        for _ in range(WARM_UP):
            fail()
        before = resident()
        for _ in range(TIMES_OF_WORKERS if way is a_worker_that_ends else TIMES):
            fail()
        kept = {"grown": grown_since(before), "circles": circles_of(fail)}
    gc.collect()
    return kept


def main() -> None:
    gc.disable()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        kept = kept_by(WAYS[line.strip()])
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    main()
