"""Defines the base of executors at the top of a stack: they take computations in, and their target runs them."""

import abc
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedstack.computations.plan.graph import Function
from fedstack.computations.types.language import Executor, Type
from fedstack.executors.base.lazy_executor import LazyExecutor
from fedstack.executors.base.lazy_values import LazyValue
from fedstack.executors.base.one_by_one import OneByOneExecutor
from fedstack.executors.base.scheduled_executor import pull_side_by_side

_T = TypeVar("_T")


class DelegatingExecutor(LazyExecutor, abc.ABC):
    """A lazy executor whose traced functions run in its target.

    Args:
      target: The executor below; one of another origin is driven through the four verbs. It is closed with this one.
    """

    def __init__(self, target: Executor) -> None:
        super().__init__()
        self._target = target if isinstance(target, LazyExecutor) else OneByOneExecutor(target)

    @property
    def drives_inline(self) -> bool:
        return self._target.drives_inline

    @property
    def known_clients(self) -> int | None:
        return self._target.known_clients

    @property
    def target(self) -> LazyExecutor:
        """The executor below."""
        return self._target

    async def evaluate(self, function: Function, argument: object) -> object:
        return await self._target.evaluate(function, argument)

    def start_parts(self, function: Function) -> object:
        return self._target.start_parts(function)

    async def evaluate_part(self, session: object, path: tuple[int, ...], argument: object) -> object:
        return await self._target.evaluate_part(session, path, argument)

    async def pull_all(self, values: Sequence[LazyValue]) -> tuple[object, ...]:
        return await pull_side_by_side(values)

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await self._target.finish(work, type_spec)

    def close(self) -> None:
        super().close()
        self._target.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._target!r}>"
