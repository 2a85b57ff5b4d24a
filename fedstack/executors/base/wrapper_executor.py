"""Defines the base of executors that wrap one other and change a single thing about it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor, Type
from fedstack.computations.values.columns import Column
from fedstack.executors.base.client_blocks import Sink
from fedstack.executors.base.one_by_one import as_bulk
from fedstack.executors.base.unplaced_executor import UnplacedExecutor, finish_in, runs_intrinsic
from fedstack.executors.concurrency.leaf_threads import LeafThreads

_T = TypeVar("_T")


class WrapperExecutor(UnplacedExecutor):
    """Passes everything through to its target; subclasses override what they change.

    Args:
      target: The executor below. It is closed with this one.
    """

    def __init__(self, target: Executor) -> None:
        super().__init__()
        self.target = as_bulk(target)

    @property
    def drives_inline(self) -> bool:
        return self.target.drives_inline

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return self.target.leaf_threads

    def runs_intrinsic(self, uri: str) -> bool:
        return runs_intrinsic(self.target, uri)

    def link(self, program: Program) -> Program:
        return self.target.link(program)

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        return await self.target.run_once(program, inputs)

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        await self.target.run_clients(program, inputs, clients, sink)

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await finish_in(self.target, work, type_spec)

    def close(self) -> None:
        super().close()
        self.target.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.target!r}>"
