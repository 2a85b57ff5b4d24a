"""Runs calls at one place: through the verbs of executors, one for each number of clients."""

import abc
import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol, cast
from weakref import WeakKeyDictionary

import attrs

from fedstack.computations.types.language import (
    CLIENTS,
    Executor,
    ExecutorValue,
    Struct,
    Type,
)
from fedstack.errors import FedstackError
from fedstack.executors.base.verb_executor import create_known, pull
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.service.coordinator.calls.calls import Argument, Call, Function, Known, Lasting, Opened, Result
from fedstack.service.coordinator.scheduling.closures import Closure, Place
from fedstack.service.coordinator.silence import SilenceWatch
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import start_apart

# Values of one worker are disposed of in batches of so many.
_DISPOSE_BATCH = 500
# Values of one worker are fetched so many in a call.
FETCH_BATCH = 100
# One executor for each number of clients; of more than this those that hold nothing are closed.
_MOST_EXECUTORS = 16
# When to ask again a worker that could not be asked whether it is about to stop.
_AGAIN_SECONDS = 1.0


@attrs.frozen(eq=False)
class Held:
    """What stands for the value of a closure at a site.

    Attributes:
      executor: The executor that has it.
      value: The value there; it is disposed of when nothing refers to it.
    """

    executor: Executor
    value: ExecutorValue

    async def payload(self) -> object:
        """Fetches the value."""
        return await pull(self.value)


async def payloads_of(values: Sequence[Held]) -> list[object]:
    """Fetches values: those that one executor has in a few calls."""
    groups: dict[Executor, list[int]] = {}
    for index, held in enumerate(values):
        groups.setdefault(held.executor, []).append(index)
    found: dict[int, object] = {}

    async def fetch(executor: Executor, indices: Sequence[int]) -> None:
        if len(indices) == 1:
            found[indices[0]] = await values[indices[0]].payload()
            return
        members = [(None, values[index].value) for index in indices]
        struct = await executor.create_struct(Struct(members))
        found.update(zip(indices, cast("tuple[object, ...]", await pull(struct))))

    batches = [
        fetch(executor, indices[start : start + FETCH_BATCH])
        for executor, indices in groups.items()
        for start in range(0, len(indices), FETCH_BATCH)
    ]
    await gather(batches)
    return [found[index] for index in range(len(values))]


class Values(Protocol):
    """Where the values of closures are.

    Attributes:
      waiting: How many closures wait for a place, or for others.
    """

    @property
    def waiting(self) -> int: ...

    async def payload_of(self, closure: Closure, /) -> object:
        """Returns the payload of a value, wherever it is."""
        ...

    def holds(self, closure: Closure, place: Place, held: Held, /) -> None:
        """Notes that a place has got the value of a closure."""
        ...

    def silent(self, place: Place, is_silent: bool, /) -> None:
        """Notes that a place does not answer, or does so again."""
        ...

    async def hand_over(self, site: "Site", /) -> None:
        """Brings home what a site has finished, and gives it nothing more: it is about to stop."""
        ...


Outcomes = Mapping[ExecutorValue, Exception | None]


class Site(abc.ABC):
    """What runs at a place. Its coroutines run on the coordinator's loop.

    Args:
      place: The place.
      values: Where the values of closures are.
    """

    def __init__(self, place: Place, values: Values) -> None:
        self.place = place
        self._values = values
        self._executors: dict[int, Executor] = {}
        self._uses = Counter[int]()
        self._lasting: dict[Executor, WeakKeyDictionary[Function | Lasting, asyncio.Future[ExecutorValue]]] = {}
        self._brought: dict[tuple[Executor, Closure], asyncio.Future[ExecutorValue]] = {}

    @abc.abstractmethod
    def _make_executor(self, clients: int) -> Executor:
        """Makes an executor for a number of clients."""

    @abc.abstractmethod
    async def start(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        """Runs values; returns of those that end first why they failed, and else `None`."""

    @contextlib.contextmanager
    def in_use(self, clients: int) -> Generator[None, None, None]:
        """A block in which something with a number of clients is to run here."""
        self._uses[clients] += 1
        try:
            yield
        finally:
            self._uses[clients] -= 1

    @abc.abstractmethod
    async def stop(self, held: Sequence[Held]) -> None:
        """Stops to run values, if possible."""

    def executor(self, clients: int) -> Executor:
        """Returns the executor for a number of clients."""
        found = self._executors.pop(clients, None)
        if found is None:
            self._close_idle()
            found = self._make_executor(clients)
            self._lasting[found] = WeakKeyDictionary()
        self._executors[clients] = found  # last: it was used last
        return found

    def _close_idle(self) -> None:
        """Makes room for another executor, if there are many, and those used longest ago are of no use."""
        if len(self._executors) < _MOST_EXECUTORS:
            return
        held = [cast("Held | None", closure.held.get(self.place)) for closure in list(self.place.values)]
        needed = {one.executor for one in held if one is not None}
        for clients, executor in list(self._executors.items())[: 1 - _MOST_EXECUTORS]:
            if not self._uses[clients] and executor not in needed:
                self._close_executor(self._executors.pop(clients))
                del self._lasting[executor]

    def is_quick(self, call: Call) -> bool:
        """Returns whether nothing has to be brought here before a call can begin."""
        executor = self._executors.get(call.clients)
        if executor is None:
            return False
        return self._is_kept(executor, call.function) and self._has(executor, call.argument)

    def _is_kept(self, executor: Executor, lasting: Function | Lasting) -> bool:
        found = self._lasting[executor].get(lasting)
        return found is not None and found.done()

    def _has(self, executor: Executor, argument: Argument | None) -> bool:
        if argument is None or isinstance(argument, Known):
            return True
        if isinstance(argument, Lasting):
            return self._is_kept(executor, argument)
        if isinstance(argument, Opened):
            return self._is_kept(executor, argument.function) and self._has(executor, argument.boxed)
        if isinstance(argument, Result):
            held = cast("Held | None", argument.closure.held.get(self.place))
            return held is not None and held.executor is executor
        return all(self._has(executor, member) for member in argument.members)

    async def call(self, call: Call) -> Held:
        """Makes the value of a call, without running it."""
        executor = self.executor(call.clients)
        function = await self._kept(executor, call.function)
        argument = None if call.argument is None else await self._argument(executor, call.argument)
        return Held(executor, await executor.create_call(function, argument))

    async def _kept(self, executor: Executor, lasting: Function | Lasting) -> ExecutorValue:
        """Returns what stands for something in an executor, where it is brought once."""
        kept = self._lasting[executor]
        found = kept.get(lasting)
        if found is None:
            found = kept[lasting] = asyncio.ensure_future(_created(executor, lasting))
            found.add_done_callback(consume_exception)
        try:
            return await asyncio.shield(found)
        except BaseException:
            if found.done():
                kept.pop(lasting, None)  # the next one may have more luck
            raise

    async def _argument(self, executor: Executor, argument: Argument) -> ExecutorValue:
        if isinstance(argument, Known):
            return await create_known(executor, argument.payload, argument.type_signature)
        if isinstance(argument, Lasting):
            return await self._kept(executor, argument)
        if isinstance(argument, Result):
            return await self._value(executor, argument.closure, argument.type_signature)
        if isinstance(argument, Opened):
            boxed = await self._argument(executor, argument.boxed)
            return await executor.create_call(await self._kept(executor, argument.function), boxed)
        members = [await self._argument(executor, member) for member in argument.members]
        return await executor.create_struct(Struct(list(zip(argument.names, members))))

    async def _value(self, executor: Executor, closure: Closure, type_spec: Type) -> ExecutorValue:
        """Returns the value of a closure in an executor; brings it there, once, if it is not."""
        held = cast("Held | None", closure.held.get(self.place))
        if held is not None and held.executor is executor:
            return held.value
        key = executor, closure
        found = self._brought.get(key)
        if found is None:
            found = self._brought[key] = asyncio.ensure_future(self._moved(executor, closure, type_spec))
            found.add_done_callback(consume_exception)
            found.add_done_callback(lambda _: self._brought.pop(key, None))
        return await asyncio.shield(found)

    async def _moved(self, executor: Executor, closure: Closure, type_spec: Type) -> ExecutorValue:
        value = await create_known(executor, await self._values.payload_of(closure), type_spec)
        self._values.holds(closure, self.place, Held(executor, value))
        return value

    def close(self) -> None:
        """Ends the executors that this has made. Idempotent; never raises."""
        for futures in (*self._lasting.values(), self._brought):
            for future in futures.values():
                future.cancel()
        self._lasting.clear()
        for executor in self._executors.values():
            self._close_executor(executor)
        self._executors.clear()

    def _close_executor(self, executor: Executor) -> None:
        cast(RemoteExecutor, executor).close()


class RemoteSite(Site):
    """A worker in another process.

    Args:
      stub: Calls it. It stays open.
      place: See `Site`.
      values: See `Site`.
    """

    def __init__(self, stub: ExecutorStub, place: Place, values: Values) -> None:
        super().__init__(place, values)
        self._stub = stub
        self._watch = SilenceWatch(stub, self._ask, lambda is_silent: values.silent(place, is_silent))
        self._leaving: asyncio.Task[None] | None = start_apart(self._leave())

    def _make_executor(self, clients: int) -> Executor:
        executor = RemoteExecutor(self._stub, _DISPOSE_BATCH)
        executor.worker_index = self.place.index
        executor.set_cardinalities({CLIENTS: clients} if clients else {})
        return executor

    async def start(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        remote, started = cast(RemoteExecutor, executor), cast("Sequence[VerbValue]", values)
        outcomes = await remote.start(started, self._values.waiting)
        self._watch.heard()
        return {**outcomes}

    async def _leave(self) -> None:
        """Hands over what the worker has once it says that it is about to stop."""
        while True:
            try:
                await self._stub.connection.until_draining()
                break
            except FedstackError:  # whether it is lost is found out elsewhere
                await asyncio.sleep(_AGAIN_SECONDS)
        await self._values.hand_over(self)

    async def _ask(self) -> None:
        """Says in each session that is in use how many closures wait, and returns when that was heard."""
        used = [executor for clients, executor in self._executors.items() if self._uses[clients]]
        await gather([cast(RemoteExecutor, executor).start((), self._values.waiting) for executor in used])

    @contextlib.contextmanager
    def in_use(self, clients: int) -> Generator[None, None, None]:
        with self._watch.while_in_use(), super().in_use(clients):
            yield

    async def stop(self, held: Sequence[Held]) -> None:
        for executor in self._executors.values():
            values = [cast(VerbValue, one.value) for one in held if one.executor is executor]
            if values:
                await cast(RemoteExecutor, executor).stop(values)

    def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None  # a cancelled task keeps its frames, and those the connection
        self._watch.close()
        super().close()


async def _created(executor: Executor, lasting: Function | Lasting) -> ExecutorValue:
    if isinstance(lasting, Lasting):
        return await create_known(executor, lasting.payload, lasting.type_signature)
    return await executor.create_value(lasting.computation, lasting.type_signature)
