"""Composed phases: what children contribute is merged as it comes, with the same results and errors as in order."""

import asyncio
import weakref
from collections.abc import Callable, Sequence

import attrs
import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.plan.tasks import Phase
from fedstack.contexts import ResourceManagingExecutorFactory, SyncExecutionContext
from fedstack.errors import TypeMismatchError
from fedstack.executors import ComposingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.folds.aggregations import FoldArguments
from fedstack.executors.folds.tree_fold import Partial, aligned_blocks

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@attrs.define(eq=False)
class Child(PhaseRunner):
    """Contributes an array of ones for each block of its clients, once the children named in `after` have ended.

    Attributes:
      size: How long the arrays are.
      after: What this waits for.
      ended: Whether this has ended.
      arrays: What it has contributed.
    """

    size: int
    after: Callable[[], bool] = lambda: True
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)
    arrays: list["weakref.ref[np.ndarray]"] = attrs.field(factory=list)

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        end = asyncio.get_running_loop().time() + LIMIT
        while not self.after():
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.001)
        blocks: list[Partial] = []
        for level, position in aligned_blocks(clients):
            array = np.full(self.size, 1 << level, np.int32)
            self.arrays.append(weakref.ref(array))
            blocks.append(Partial(level, position, array, False))
        self.ended.set()
        return PhaseResult([[blocks]], [])

    @property
    def is_merged(self) -> bool:
        """Whether this has ended, and nobody has what it contributed any more."""
        return self.ended.is_set() and not any(array() is not None for array in self.arrays)


def aggregated(
    aggregate: Callable[[fl.Value], fl.Value],
    children: Sequence[PhaseRunner],
    counts: Sequence[int],
    shape: Sequence[int | None],
) -> np.ndarray:
    """Returns what an aggregation of arrays makes of what the children contribute."""
    member = fl.TensorType(np.int32, shape)

    @fedstack.python_computation([np.int32], member)
    def never_called(_: np.int32) -> np.ndarray:
        raise AssertionError("children of these tests call nothing")

    @fl.federated_computation(INTS)
    def total(values: fl.Value) -> fl.Value:
        return aggregate(fl.federated_map(never_called, values))

    composing = ComposingExecutor(SequenceExecutor(LeafExecutor()), children, counts)
    executor = ReferenceResolvingExecutor(composing)
    factory = ResourceManagingExecutorFactory(lambda _: executor)
    with SyncExecutionContext(factory) as context, fedstack.use_context(context):
        return total([0] * sum(counts))


def test_what_a_child_contributes_is_merged_while_others_run() -> None:
    first, second = Child(5), Child(5)
    last = Child(5, after=lambda: first.is_merged and second.is_merged)
    assert aggregated(fl.federated_sum, [first, second, last], [4, 4, 7], [5]).tolist() == [15] * 5


def test_the_first_client_with_another_shape_is_blamed_whichever_child_ends_first() -> None:
    third = Child(4)
    others = [Child(3, after=third.ended.is_set) for _ in range(3)]
    with pytest.raises(TypeMismatchError, match=r"found \[4\] and \[3\]; at client 4;"):
        aggregated(fl.federated_max, [*others[:2], third, others[2]], [2, 2, 2, 2], [None])
