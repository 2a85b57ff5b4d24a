"""Defines the executor at the bottom of every stack, which calls leaf computations on a bounded pool of threads."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedstack.computations.leaves.carrier_policy import Rules
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.leaves.work_scope import current_policy, current_scope
from fedstack.computations.plan.fusing import fused
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.program import (
    CompositeOperation,
    DataSource,
    IntrinsicSource,
    LeafSource,
    Linking,
    Operation,
    Program,
)
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.columns import Column
from fedstack.errors import CarrierError, InvalidComputationError, UnsupportedIntrinsicError
from fedstack.executors.base.client_blocks import ClientBlocks
from fedstack.executors.base.engines import LoadNeeded, ProgramEngine, arithmetic_for, holds_up_a_loop
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.single_block import is_single_block, run_single_block
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.concurrency.leaf_threads import LeafThreads, SharedLeafThreads
from fedstack.executors.concurrency.measurements import timed_run
from fedstack.foundations.public_names import takes_options

_T = TypeVar("_T")
# The maximum number of carrier policies whose linked leaves are cached.
_MOST_POLICIES = 100


@functools.lru_cache(_MOST_POLICIES)
def _leaves_under(rules: Rules) -> Linking:
    """Returns the `Linking` for a carrier policy. Each policy has its own linked leaves."""
    return Linking(f"leaf computations under {rules}")


class LeafEngine(ProgramEngine):
    """Runs programs of leaf computations; see `LeafExecutor`."""

    def __init__(
        self, threads: LeafThreads, clients_per_thread: int | None, max_concurrent_clients: int | None
    ) -> None:
        self._threads = threads
        self._clients_per_thread = clients_per_thread
        self._max_concurrent_clients = max_concurrent_clients
        self._leaves = LoadedLeaves()

    @property
    def drives_inline(self) -> bool:
        return True

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return self._threads

    def runs_intrinsic(self, uri: str) -> bool:
        return uri.startswith("generic_")

    def link(self, program: Program) -> Program:
        return fused(program.with_operations(_leaves_under(current_policy().rules), self._operation))

    def _operation(self, operation: Operation) -> Operation:
        if isinstance(operation, LeafSource):
            leaves = current_scope().leaves or self._leaves
            if holds_up_a_loop() and leaves.find(operation.computation) is None:
                raise LoadNeeded(self._threads)
            return leaves.load(operation.computation)
        if isinstance(operation, IntrinsicSource):
            found = arithmetic_for(operation)
            if found is None:
                raise UnsupportedIntrinsicError(
                    f"Expected only generic operators in {self!r}, found {operation.uri}; wrap the LeafExecutor in a "
                    "SequenceExecutor or a FederatingExecutor, as local_executor_factory does"
                )
            return found
        if isinstance(operation, DataSource):
            content = operation.computation.data.content.type_url or operation.computation.data.uri
            if not content:
                raise InvalidComputationError("Expected a data block with content or a URI, found an empty data block")
            raise CarrierError(
                f"Expected only leaf computations in {self!r}, found a data block with {content}; add to the stack a "
                "DataExecutor whose backend supplies this data"
            )
        return operation.linked(self.link) if isinstance(operation, CompositeOperation) else operation

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        if not program.steps:
            return run_once(program, inputs)
        stops: list[object] = []
        return await self._threads.run(lambda: timed_run(program, inputs, stops), lambda: stops.append(True))

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        if is_single_block(program, clients):
            await self._threads.run(lambda: run_single_block(program, inputs, clients, sink))
            return
        blocks = ClientBlocks(
            program,
            inputs,
            clients,
            sink,
            smallest_block=self._clients_per_thread,
            max_threads=self._max_concurrent_clients,
        )
        await self._threads.run(lambda: blocks.run(self._threads), lambda: blocks.cancel(self._threads))

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        if contains_sequence(type_spec):
            return await self._threads.run(work)  # a sequence may be a stream that user code produces
        return work()

    def __repr__(self) -> str:
        return "<LeafExecutor>"


class LeafExecutor(VerbExecutor):
    """Runs leaf computations in their runtimes, and the generic operators on structs of numbers.

    Args:
      clients_per_thread: The minimum number of clients that a thread processes at a time. By default, it is chosen from
        measured run times.
      max_concurrent_clients: The maximum number of functions that run at the same time, on clients and on the server.
        With 1, all functions run sequentially. By default, the limit is one per core for functions that compute; for
        functions that wait, it is 32 or four per core, whichever is larger.
      threads: A pool of threads to share with other executors, with a common limit. By default, this executor has
        its own threads.
    """

    @takes_options()
    def __init__(
        self,
        *,
        clients_per_thread: int | None = None,
        max_concurrent_clients: int | None = None,
        threads: SharedLeafThreads | None = None,
    ) -> None:
        self._threads = SharedLeafThreads(max_concurrent_clients) if threads is None else threads
        engine = LeafEngine(self._threads.lend(), clients_per_thread, max_concurrent_clients)
        super().__init__(LazyRecorder(engine))

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._threads.give_back()
