"""Programs for simulated clusters, each of which checks every result that it gets."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import attrs
import federated_language as fl
import numpy as np

import fedstack
from fedstack.computations.types.language import RetryableError
from fedstack.errors import StaleSessionError
from fedstack.executors import RemoteExecutor
from fedstack.executors.remote.remote_values import SessionValue
from fedstack.proto.extensions_pb2 import UpdateRequest
from fedstack.service.coordinator import AsyncClusterCoordinator
from fedstack.service.coordinator.variables import VariableHandle, VariableServer
from fedstack.service.rpc import Client, MethodService
from fedstack.testing import SimulatedCluster, SimulatedFaults
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.methods import Service
from fedstack.transport.wire.addresses import Target

Program = Callable[[SimulatedCluster], Coroutine[Any, Any, None]]
# A call waits for a worker to be there, then for one that does not answer, and the session that a phase needs is opened
# anew once: 10 s each, and a bit for what is on its way.
LONGEST_CALL = 45.0
ROUNDS = 12
LONGEST_LEASE = 130.0
CLIENTS = 37


@fedstack.python_computation([np.float32, np.float32], np.float32)
def scaled(value, factor):
    return value * factor


@fedstack.python_computation(np.float32, np.float32)
def third(value):
    return value / np.float32(3)


@fedstack.python_computation([np.float32, np.float32], np.float32)
def blended(left, right):
    return (left + right) / np.float32(1.9)


FUNCTIONS = (third, blended)
# How often `counted` has run, by its argument.
_ran: Counter[int] = Counter()


@fedstack.python_computation(np.float32, np.float32)
def counted(value):
    _ran[int(value)] += 1
    return value / np.float32(3)


def runs() -> Counter[int]:
    """Returns how often `counted` has run since the last program began, by its argument."""
    return Counter(_ran)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS), fl.FederatedType(np.float32, fl.SERVER))
def mean_of_scaled(values, factor):
    here = fl.federated_broadcast(factor)
    return fl.federated_mean(fl.federated_map(scaled, fl.federated_zip((values, here))))


def arguments(number: int) -> tuple[list[np.float32], np.float32]:
    """Returns the argument of the round of a number: its mean depends on the order in which it is summed."""
    return [np.float32(0.1 * (client + number)) for client in range(CLIENTS)], np.float32(1 + number)


def expected_means() -> list[np.float32]:
    """Returns what the rounds are to bring, computed here."""
    with fedstack.create_sync_local_execution_context():
        return [mean_of_scaled(*arguments(number)) for number in range(ROUNDS)]


MEANS = expected_means()


async def call(context: fedstack.contexts.AsyncExecutionContext, number: int) -> np.float32:
    """Plays the round of a number."""
    with fedstack.use_context(context):
        return await mean_of_scaled(*arguments(number))


async def rounds(cluster: SimulatedCluster) -> None:
    """Rounds over all workers, two at a time: each result has the bits of a local run, or its error is retryable."""
    factory = fedstack.remote_executor_factory(cluster.stubs())
    context = fedstack.contexts.AsyncExecutionContext(factory, retry_policy=fedstack.RetryPolicy.none())

    async def play(numbers: range) -> None:
        for number in numbers:
            begun = cluster.time
            try:
                mean = await call(context, number)
            except RetryableError as error:
                cluster.say(f"round {number}: {type(error).__name__}")
            else:
                assert mean.tobytes() == MEANS[number].tobytes(), f"round {number}: {mean!r} is not {MEANS[number]!r}"
            assert cluster.time - begun < LONGEST_CALL, f"round {number} took {cluster.time - begun} s"
            await asyncio.sleep(1.0)

    await asyncio.gather(play(range(0, ROUNDS, 2)), play(range(1, ROUNDS, 2)))
    context.close()


async def kept_values(cluster: SimulatedCluster) -> None:
    """Values that stay in a worker from call to call: each is the third of the one before, or its session is lost."""

    async def play(executor: RemoteExecutor, number: int) -> None:
        executor.set_cardinalities({})
        function = value = None
        known = np.float32(0)
        for step in range(ROUNDS):
            begun = cluster.time
            try:
                function = function or await executor.create_value(third)
                if value is None:
                    known = np.float32(1000 * number + step)
                    value = await executor.create_value(known, np.float32)
                value = await executor.create_call(function, value)
                known = np.float32(known / np.float32(3))
                found = await value.compute()
            except RetryableError as error:
                cluster.say(f"values {number}: {type(error).__name__}")
                function = value = None
            else:
                assert found.tobytes() == known.tobytes(), f"values {number}: {found!r} is not {known!r}"
            assert cluster.time - begun < LONGEST_CALL, f"step {step} took {cluster.time - begun} s"
            await asyncio.sleep(0.5)
        executor.close()

    await asyncio.gather(*(play(RemoteExecutor(stub), number) for number, stub in enumerate(cluster.stubs(), 1)))


async def scheduled_calls(cluster: SimulatedCluster) -> None:
    """Calls over values of other calls, at any worker: each value has the right bits however often it is rebuilt."""
    chance = random.Random(cluster.seed)
    coordinator = AsyncClusterCoordinator(cluster.stubs(), connect_seconds=LONGEST_CALL, on_error="continue")
    values = [
        (await coordinator.schedule(third, [np.float32(number)]), np.float32(number) / np.float32(3))
        for number in range(8)
    ]
    found = None
    for step in range(40):
        (left, left_known), (right, right_known) = chance.sample(values, 2)
        value = await coordinator.schedule(blended, [left, right], prefetch=chance.random() < 0.2)
        values[chance.randrange(len(values))] = (
            value,
            (left_known + right_known) / np.float32(1.9),
        )
        if chance.random() < 0.2:
            found, known = chance.choice(values)
            check("step", step, await bounded(cluster, found), known)
        await asyncio.sleep(chance.expovariate(2.0))
    await bounded(cluster, coordinator.join())
    for number, (value, known) in enumerate(values):
        check("value", number, await bounded(cluster, value), known)
    del value, found, left, right
    values.clear()
    # What was lost meanwhile has run out by then; what is left are functions.
    cluster.calm()
    await asyncio.sleep(LONGEST_LEASE)
    kept = [session.values for worker in cluster.workers for session in worker.sessions]
    assert max(kept, default=0) <= len(FUNCTIONS), f"nobody refers to a value any more, and workers hold {kept}"
    coordinator.close()


async def calls_that_are_not_repeated(cluster: SimulatedCluster) -> None:
    """Calls that may not run again: each runs once at most, and a value that is there comes of the one run."""
    chance = random.Random(cluster.seed)
    _ran.clear()
    coordinator = AsyncClusterCoordinator(cluster.stubs(), connect_seconds=LONGEST_CALL, on_error="continue")
    values: list[tuple[Awaitable[object], int, bool]] = []
    for number in range(30):
        may_repeat = chance.random() < 0.2
        value = await coordinator.schedule(
            counted, [np.float32(number)], repeatable=may_repeat, prefetch=chance.random() < 0.5
        )
        values.append((value, number, may_repeat))
        await asyncio.sleep(chance.expovariate(2.0))
    with contextlib.suppress(RetryableError):
        await bounded(cluster, coordinator.join())
    for value, number, may_repeat in values:
        try:
            check("value", number, await bounded(cluster, value), np.float32(number) / np.float32(3))
            assert _ran[number], f"call {number} has a value, and has not run"
        except RetryableError as error:
            assert not may_repeat, f"call {number} was not repeated: {error!r}"
            cluster.say(f"call {number}: {type(error).__name__}")
        assert may_repeat or _ran[number] <= 1, f"call {number} ran {_ran[number]} times"
    coordinator.close()


async def called_methods(cluster: SimulatedCluster) -> None:
    """Calls of methods: each has the right result, or an error, within its time; what may have run is not repeated."""

    async def play(client: Client, number: int) -> None:
        for step in range(ROUNDS):
            left, right = np.float32(number), np.float32(step)
            begun = cluster.time
            try:
                found = await client.call("blended", [left, right], timeout_in_ms=20_000)
            except RetryableError as error:
                cluster.say(f"methods {number}: {type(error).__name__}")
            else:
                check("call", step, found, (left + right) / np.float32(1.9))
            assert cluster.time - begun < 21, f"call {step} took {cluster.time - begun} s"
            await asyncio.sleep(0.5)
        client.close()

    clients = [Client.create("grpc", stub, list_registered_methods=False) for stub in cluster.stubs()]
    await asyncio.gather(*(play(client, number) for number, client in enumerate(clients, 1)))


async def shared_variables(cluster: SimulatedCluster) -> None:
    """Two callers add to each variable: none of what they add is lost, comes twice, or is read before it was sent."""

    async def play(number: int, own: ExecutorStub, stubs: Sequence[ExecutorStub]) -> None:
        for _ in range(3):
            executor = RemoteExecutor(own)
            executor.set_cardinalities({})
            try:
                value = await started(executor, np.int64(0))
            except RetryableError as error:
                cluster.say(f"variable {number}: {type(error).__name__}")
            else:
                target = Target("localhost:1")  # each caller dials the server by itself
                held = VariableHandle(target, value.session.executor.id, value.id, value.type_signature, is_own=False)
                adders = [Adder(cluster, held, stub) for stub in stubs]
                await asyncio.gather(*(adder.run(adders) for adder in adders))
            executor.close()

    first, second, third_ones = cluster.stubs(), cluster.stubs(), cluster.stubs()
    await asyncio.gather(
        *(play(number, *stubs) for number, *stubs in zip(itertools.count(), first, zip(second, third_ones)))
    )


async def started(executor: RemoteExecutor, initial: np.int64) -> SessionValue:
    """Returns a value that the server has, and keeps as long as this is there."""
    value = await executor.create_value(initial, np.int64)
    assert isinstance(value, SessionValue)
    for error in (await executor.start([value])).values():
        if error is not None:
            raise error
    return value


class Adder:
    """Adds to a variable, and reads it now and then.

    Attributes:
      begun: How much it has begun to add.
      done: How much of that is known to have been added.
    """

    def __init__(self, cluster: SimulatedCluster, held: VariableHandle, stub: ExecutorStub) -> None:
        self.begun = self.done = 0
        self._cluster = cluster
        self._held = held
        self._server = VariableServer(stub)

    async def run(self, adders: "Sequence[Adder]") -> None:
        """Adds until the variable is gone.

        Args:
          adders: All that add to it.
        """
        for step in range(ROUNDS):
            begun = self._cluster.time
            try:
                if step % 3 == 2:
                    least = sum(adder.done for adder in adders)
                    found = await self._held.read(self._server)
                    most = sum(adder.begun for adder in adders)
                    assert least <= int(cast("np.int64", found)) <= most, f"it is {found}, not {least} to {most}"
                else:
                    self.begun += step + 1
                    await self._held.update(self._server, UpdateRequest.ADD, np.int64(step + 1))
                    self.done += step + 1
            except StaleSessionError:
                self._cluster.say("the variable is gone")
                return
            except RetryableError as error:
                self._cluster.say(f"adding: {type(error).__name__}")
            assert self._cluster.time - begun < LONGEST_CALL, f"step {step} took {self._cluster.time - begun} s"
            await asyncio.sleep(0.5)


def methods(clock: Callable[[], float]) -> Sequence[Service]:
    """Makes what workers serve to `called_methods`."""
    service = MethodService(fedstack.local_executor_factory(max_concurrent_clients=1))
    service.register("blended", blended)
    return [service]


async def bounded(cluster: SimulatedCluster, work: Awaitable[object]) -> object:
    """Awaits what takes as many calls as there are values to rebuild."""
    begun = cluster.time
    found = await work
    assert cluster.time - begun < 20 * LONGEST_CALL, f"it took {cluster.time - begun} s"
    return found


def check(what: str, number: int, found: object, known: np.float32) -> None:
    """Checks the bits of a result."""
    assert np.asarray(found).tobytes() == known.tobytes(), f"{what} {number}: {found!r} is not {known!r}"


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        rounds,
        kept_values,
        scheduled_calls,
        calls_that_are_not_repeated,
        called_methods,
        shared_variables,
    )
}


def rough_run(name: str, seed: int) -> SimulatedCluster:
    """Runs a program over three workers to which everything happens; returns what it ran over."""
    services = methods if name == "called_methods" else None
    faults = SimulatedFaults.rough()
    if name == "shared_variables":
        faults = attrs.evolve(
            faults, doubled_rate=0.0
        )  # the transport brings an update once, or not: nothing repeats it
    cluster = SimulatedCluster(3, seed, faults, make_services=services)
    cluster.run(PROGRAMS[name])
    return cluster
