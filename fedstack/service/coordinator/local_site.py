"""Runs calls at executors of this process."""

import asyncio
from collections.abc import Callable, Sequence

from fedstack.computations.leaves.work_scope import WorkKind, current_scope
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory, ExecutorValue, RetryableError
from fedstack.executors.base.verb_executor import pull
from fedstack.executors.stacks.resource_factory import borrow
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.service.coordinator.scheduling.closures import Place
from fedstack.service.coordinator.sites import Held, Outcomes, Site, Values
from fedstack.service.executor.sessions.session import ClosureScope


class LocalSite(Site):
    """Executors of this process, made by a factory.

    Args:
      factory: Makes them.
      place: See `Site`.
      values: See `Site`.
    """

    def __init__(self, factory: ExecutorFactory, place: Place, values: Values) -> None:
        super().__init__(place, values)
        self._factory = factory
        self._scope = current_scope().replace(kind=WorkKind.CLOSURE).adding(ClosureScope(place.index, {}))
        self._tasks: dict[ExecutorValue, asyncio.Task[object]] = {}
        self._give_back: dict[Executor, Callable[[], None]] = {}

    def _make_executor(self, clients: int) -> Executor:
        executor, give_back = borrow(self._factory, {CLIENTS: clients} if clients else {})
        self._give_back[executor] = give_back
        return executor

    async def start(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        with self._scope.entered():
            tasks = {value: self._tasks.get(value) or asyncio.ensure_future(pull(value)) for value in values}
        self._tasks.update(tasks)
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        outcomes: dict[ExecutorValue, Exception | None] = {}
        for value, task in tasks.items():
            if task.done():
                self._tasks.pop(value, None)
                error = asyncio.CancelledError() if task.cancelled() else task.exception()
                if isinstance(error, RetryableError):
                    raise error
                outcomes[value] = error if isinstance(error, Exception) else None
        return outcomes

    async def stop(self, held: Sequence[Held]) -> None:
        for one in held:
            if (task := self._tasks.get(one.value)) is not None:
                task.cancel()

    def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.add_done_callback(drop_outcome)
            task.cancel()
        super().close()

    def _close_executor(self, executor: Executor) -> None:
        """Gives it back to the factory, which others may use as well."""
        self._give_back.pop(executor)()
