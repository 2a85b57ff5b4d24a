"""The subjects of conformance rows: executors, and stacks behind contexts. A subject closes all that it creates."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from fedstack.computations.types.language import (
    ConcreteComputation,
    Executor,
    ExecutorFactory,
    ExecutorValue,
    StructType,
    Type,
)
from fedstack.computations.types.type_structure import fields_of, is_client_valued
from fedstack.contexts.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.contexts.in_force import use_context
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.testing.expectations import plain
from fedstack.transport.peers.retry import RetryPolicy

MakeExecutor: TypeAlias = Callable[[int], Executor]
MakeFactory: TypeAlias = Callable[[], ExecutorFactory]


class Runner(abc.ABC):
    """Runs computations for promises about both executors and stacks."""

    @abc.abstractmethod
    async def run(self, computation: ConcreteComputation, *arguments: object) -> object:
        """Runs a computation on one argument per parameter.

        The number of clients is taken from the arguments. A computation whose arguments contain no client values
        therefore needs an additional, unused argument with client values.

        Args:
          computation: The computation.
          *arguments: The arguments, one per parameter.

        Returns:
          The result, with structs as dictionaries or tuples.
        """


class ExecutorSubject(Runner):
    """Executors of one kind, driven through the four verbs.

    Args:
      make_executor: Returns a new executor for a number of clients.
    """

    def __init__(self, make_executor: MakeExecutor) -> None:
        self._make = make_executor
        self._made: list[Executor] = []
        self._by_clients: dict[int, Executor] = {}

    def executor(self, num_clients: int = 0) -> Executor:
        """Returns a new executor for a number of clients."""
        executor = self._make(num_clients)
        self._made.append(executor)
        return executor

    async def run(self, computation: ConcreteComputation, *arguments: object) -> object:
        parameter = computation.type_signature.parameter
        clients = 0
        for value, (_, member) in zip(arguments, _parameters_of(parameter, len(arguments))):
            clients = max(clients, _count_clients(value, member))
        if clients not in self._by_clients:
            self._by_clients[clients] = self.executor(clients)
        called = await self.call(self._by_clients[clients], computation, *arguments)
        return plain(await called.compute())

    async def call(self, executor: Executor, computation: ConcreteComputation, *arguments: object) -> ExecutorValue:
        """Returns the value of a call of a computation, without computing the value."""
        function = await executor.create_value(computation)
        parameters = _parameters_of(computation.type_signature.parameter, len(arguments))
        values = [await executor.create_value(value, t) for value, (_, t) in zip(arguments, parameters)]
        if not values:
            return await executor.create_call(function)
        if len(values) == 1:
            return await executor.create_call(function, values[0])
        return await executor.create_call(function, await executor.create_struct(values))

    def close(self) -> None:
        """Closes all executors that the subject created."""
        for executor in self._made:
            executor.close()

    def __repr__(self) -> str:
        return f"{self._made[-1] if self._made else 'no executor'!r}"


class StackSubject(Runner):
    """Stacks of one kind, driven through contexts.

    Args:
      make_factory: Returns a new executor factory.
      retry_policy: The retry policy of the contexts.
      default_num_clients: The number of clients that the factories use if the arguments contain no client values.
    """

    def __init__(
        self, make_factory: MakeFactory, retry_policy: RetryPolicy | None = None, default_num_clients: int = 0
    ) -> None:
        self._make_factory = make_factory
        self._retry_policy = retry_policy
        self.default_num_clients = default_num_clients
        self._made: list[Any] = []
        self._context: AsyncExecutionContext | None = None
        self._tolerating: ExecutorFactory | None = None

    def factory(self) -> ExecutorFactory:
        """Returns a new executor factory."""
        factory = self._make_factory()
        self._made.append(factory)
        return factory

    def sync_context(self) -> SyncExecutionContext:
        """Returns a new context whose calls return results."""
        context = SyncExecutionContext(self.factory(), retry_policy=self._retry_policy)
        self._made.append(context)
        return context

    def async_context(self) -> AsyncExecutionContext:
        """Returns a new context whose calls return coroutines."""
        context = AsyncExecutionContext(self.factory(), retry_policy=self._retry_policy)
        self._made.append(context)
        return context

    async def run(self, computation: ConcreteComputation, *arguments: object) -> object:
        if self._context is None:
            self._context = self.async_context()
        with use_context(self._context):
            # The context only has to be in force during the call: the returned coroutine refers to it.
            called = computation(*arguments)
        return plain(await called)

    async def run_tolerating(self, policy: ClientFailures, computation: ConcreteComputation, *arguments: object) -> Any:
        """Runs a computation whose clients may fail, and returns the result as the context returns it."""
        if self._tolerating is None:
            self._tolerating = self.factory()
        context = AsyncExecutionContext(self._tolerating, retry_policy=self._retry_policy, client_failures=policy)
        with use_context(context):
            called = computation(*arguments)
        return await called

    def close(self) -> None:
        """Closes all contexts and factories that the subject created."""
        for made in reversed(self._made):
            close = getattr(made, "close", None)  # factories of the language need not have a `close` method
            if close is not None:
                close()

    def __repr__(self) -> str:
        return f"{self._made[0] if self._made else 'no factory'!r}"


def _parameters_of(parameter: Type | None, count: int) -> Sequence[tuple[str | None, Type]]:
    if parameter is None:
        return ()
    return [(None, parameter)] if count == 1 else fields_of(cast(StructType, parameter))


def _count_clients(value: object, type_spec: Type) -> int:
    """Returns the number of clients in a value: the greatest length of a list of client values in it, or 0."""
    if is_client_valued(type_spec):
        return len(cast("Sequence[object]", value)) if isinstance(value, (list, tuple)) else 0
    if isinstance(type_spec, StructType) and isinstance(value, (list, tuple)):
        pairs = zip(cast("Sequence[object]", value), fields_of(type_spec))
        return max((_count_clients(member, member_type) for member, (_, member_type) in pairs), default=0)
    return 0
