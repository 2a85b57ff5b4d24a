"""Defines what the executors of unplaced work have in common: they run programs and know no clients of their own."""

import abc
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedstack.computations.plan.graph import declared_type
from fedstack.computations.plan.tasks import PhaseTask, SelectTask, ServerTask
from fedstack.computations.types.error_text import name_text
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import contains_federated
from fedstack.errors import InvalidComputationError, UnsupportedIntrinsicError
from fedstack.executors.base.bulk import BulkExecutor, linked
from fedstack.executors.base.schedule_run import ScheduleRun
from fedstack.executors.base.scheduled_executor import ScheduledExecutor

_T = TypeVar("_T")
_TAKEN = ("data", "xla", "tensorflow", "literal", "intrinsic")


class UnplacedExecutor(ScheduledExecutor, BulkExecutor):
    """An executor of values and functions without placements."""

    @abc.abstractmethod
    def runs_intrinsic(self, uri: str) -> bool:
        """Tells whether this executor, or one below it, runs the intrinsic."""

    @property
    def takes_lambdas(self) -> bool:
        """Whether functions that are no leaf computations may be passed to intrinsics here."""
        return False

    @property
    def clients(self) -> int:
        return 0

    def accepts(self, computation: computation_pb2.Computation) -> None:
        kind = computation.WhichOneof("computation")
        if kind not in _TAKEN and not (kind == "lambda" and self.takes_lambdas):
            raise InvalidComputationError(
                f"Expected a leaf computation, a literal or an intrinsic in {self!r}, found a {kind}; put a "
                "ReferenceResolvingExecutor above it"
            )
        if kind == "intrinsic" and not self.runs_intrinsic(computation.intrinsic.uri):
            raise UnsupportedIntrinsicError(
                f"Expected an intrinsic that {self!r} runs, found {name_text(computation.intrinsic.uri)!r}; the "
                "stack of local_executor_factory runs all of the language's"
            )
        type_spec = declared_type(computation)
        if contains_federated(type_spec):
            raise InvalidComputationError(
                f"Expected unplaced values in {self!r}, found {type_spec}; put a FederatingExecutor above it"
            )

    async def run_server_task(self, task: ServerTask, inputs: Sequence[object]) -> object:
        (result,) = await self.run_once(await linked(self, task.program), inputs)
        return result

    async def run_phase_task(self, task: PhaseTask, run: ScheduleRun) -> Sequence[object]:
        raise UnsupportedIntrinsicError(f"Expected unplaced work in {self!r}, found work at clients")

    async def run_select_task(self, task: SelectTask, run: ScheduleRun) -> object:
        raise UnsupportedIntrinsicError(f"Expected unplaced work in {self!r}, found {task.uri}")


def runs_intrinsic(executor: BulkExecutor, uri: str) -> bool:
    """Tells whether an executor runs an intrinsic, as far as it says."""
    return executor.runs_intrinsic(uri) if isinstance(executor, UnplacedExecutor) else False


async def finish_in(executor: BulkExecutor, work: Callable[[], _T], type_spec: Type) -> _T:
    """Runs the conversion of a result where the executor runs user code."""
    return await executor.finish(work, type_spec) if isinstance(executor, UnplacedExecutor) else work()
