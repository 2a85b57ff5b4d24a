"""Defines the executor that resolves `data` blocks other than functions, using a backend that the user supplies."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.portability import leaves_of
from fedstack.computations.plan.program import DataSource, Linking, Operation, Program
from fedstack.computations.plan.render import literal
from fedstack.computations.types.language import Executor, Type, computation_pb2
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.columns import Column
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import InvalidComputationError
from fedstack.executors.base.engines import PassingEngine, ProgramEngine
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.verb_values import Source, VerbValue
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.executors.concurrency.coroutines import need_event_loop


class DataBackend(Protocol):
    """Supplies the data that `data` blocks refer to."""

    async def materialize(self, data: computation_pb2.Data, type_spec: Type) -> object:
        """Returns the value that a `data` block refers to.

        Args:
          data: The block, which contains a URI or a message of any type.
          type_spec: The type that the value must have.

        Raises:
          Exception: If the data cannot be found. The exception is passed on to the caller of the computation.
        """
        ...


_DATA = Linking("data blocks")


class _Resolved(BoundOperation):
    """A placeholder in a program for data that is resolved before the program runs."""

    def __init__(self, source: DataSource) -> None:
        self.name = "data"
        self.result = source.type
        self.source = source

    def call(self, argument: object, client: int | None = None) -> object:
        raise InvalidComputationError(
            f"Expected data of type {self.result} to be resolved before the program runs, found an unresolved data "
            "block"
        )


class DataEngine(PassingEngine):
    """Resolves the data blocks of a program before running the program; see `DataExecutor`."""

    def __init__(self, target: ProgramEngine, backend: DataBackend) -> None:
        super().__init__(target)
        self._backend = backend

    def link(self, program: Program) -> Program:
        return self.target.link(program.with_operations(_DATA, _mark))

    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        return await self.target.run_once(await self._resolve(program), inputs)

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        await self.target.run_clients(await self._resolve(program), inputs, clients, sink)

    async def _resolve(self, program: Program) -> Program:
        """Returns the program with its data blocks replaced by constants."""
        steps = [step for step in program.steps if isinstance(step.operation, _Resolved)]
        if not steps:
            return program
        await need_event_loop()
        sources = [step.operation.source for step in steps if isinstance(step.operation, _Resolved)]
        values = await asyncio.gather(
            *(self._backend.materialize(source.computation.data, source.type) for source in sources)
        )
        payloads = [normalize_argument(value, source.type, "the data") for value, source in zip(values, sources)]
        constants = tuple((step.target, payload) for step, payload in zip(steps, payloads))
        rest = tuple(step for step in program.steps if step not in steps)
        return Program(program.inputs, (*program.constants, *constants), rest, program.results, program.slots)


class DataExecutor(WrapperExecutor):
    """Resolves each `data` block once per run, and passes all other work to its target.

    If the target has no engine, the data is resolved when a computation is created, and embedded in the computation.

    Args:
      target: The executor below. It is closed with this executor.
      backend: Resolves the data.
    """

    def __init__(self, target: Executor, backend: DataBackend) -> None:
        super().__init__(target, lambda engine: DataEngine(engine, backend))
        self._backend = backend

    async def embed(self, computation: computation_pb2.Computation, declared: Type | None, source: Source) -> VerbValue:
        if self.engine is None:
            computation = await self._resolved(computation)
        return await super().embed(computation, declared, source)

    async def _resolved(self, computation: computation_pb2.Computation) -> computation_pb2.Computation:
        """Returns the computation with its data blocks replaced by literals."""
        resolved = computation_pb2.Computation()
        resolved.CopyFrom(computation)
        for block in list(leaves_of(resolved)):
            if block.HasField("data") and not block.type.HasField("function"):
                type_spec = type_from_proto(block.type)
                value = await self._backend.materialize(block.data, type_spec)
                block.CopyFrom(literal(normalize_argument(value, type_spec, "the data"), type_spec))
        return resolved


def _mark(operation: Operation) -> Operation:
    return _Resolved(operation) if isinstance(operation, DataSource) else operation
