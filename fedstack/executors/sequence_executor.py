"""Defines the executor of the sequence intrinsics (map, reduce and sum), which process elements as a stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import cast

import numpy as np

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.plan.element_programs import ProgramFold, elements_at_once, fold_of, run_elements
from fedstack.computations.plan.interpreter import ProgramRunner, lanes, max_parallel
from fedstack.computations.plan.program import CompositeOperation, IntrinsicSource, Linking, Operation, Program
from fedstack.computations.types.language import Executor, StructType, Type
from fedstack.computations.types.type_structure import fields_of, flatten, tensor_leaves, unflatten
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn, StructColumn, concatenate
from fedstack.computations.values.element_columns import HasColumns, element_columns, is_held
from fedstack.computations.values.sequences import HasPasses, in_pass, reshuffles
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import TypeMismatchError
from fedstack.executors.base.engines import PassingEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.folds.fold_states import zero_of
from fedstack.foundations.blas_threads import with_one_blas_thread
from fedstack.foundations.caches import Made, made_once

# The maximum number of bytes of small rows that are added in one NumPy call.
_SCRATCH_BYTES = 16 << 10
# The maximum number of elements that are computed at a time in order to be added.
_AT_ONCE = 1024
_SEQUENCES = Linking("sequence intrinsics")


class MappedSequence(HasPasses):
    """A sequence whose elements are computed on each iteration."""

    __slots__ = ("captures", "client", "program", "source")

    def __init__(
        self, source: Iterable[object], program: Program, captures: Sequence[object], client: int | None
    ) -> None:
        self.source = source
        self.program = program
        self.captures = captures
        self.client = client

    @property
    def reshuffles(self) -> bool:
        return reshuffles(self.source)

    def __iter__(self) -> Iterator[object]:
        return self.in_pass(0)

    def in_pass(self, number: int) -> Iterator[object]:
        # The program runs on behalf of the client that owns the sequence, so that errors name this client.
        run = ProgramRunner(self.program).run
        if self.client is not None:
            run = with_one_blas_thread(run)  # the phase of the client may have ended
        for element in in_pass(self.source, number):
            yield run([element, *self.captures], self.client)[0]

    def __len__(self) -> int:
        return len(cast("Sized", self.source))

    def __repr__(self) -> str:
        return f"<MappedSequence of {self.source!r}>"


class MappedColumns(MappedSequence, HasColumns):
    """A mapped sequence whose program processes many elements in one call.

    Args:
      element: The type of the elements of the source.
    """

    __slots__ = ("_element",)

    def __init__(
        self, source: Iterable[object], element: Type, program: Program, captures: Sequence[object], client: int | None
    ) -> None:
        super().__init__(source, program, captures, client)
        self._element = element

    @property
    def is_held(self) -> bool:
        return is_held(self.source)

    def in_pass(self, number: int) -> Iterator[object]:
        # The first columns are short, because the reader may stop soon. A program with lanes takes as long for one.
        most = elements_at_once(self.program) if self.is_held else 1
        for column in self.columns(number, most, min(most, lanes(self.program))):
            yield from column.items()

    def columns(self, number: int, most: int, first: int) -> Iterator[Column]:
        index = 0
        for column in element_columns(self.source, self._element, number, most, first):
            size = len(column)
            captures = [ConstantColumn(capture, size) for capture in self.captures]
            yield run_elements(self.program, [column, *captures], index, self.client)
            index += size


class SequenceOperation(CompositeOperation):
    """A sequence intrinsic, with the programs of its functions."""

    def __init__(self, source: IntrinsicSource, programs: tuple[Program, ...]) -> None:
        self.name = source.uri
        self.result: Type = source.type
        self.source = source
        self.programs = programs
        self.made: Made = {}
        bounds = [bound for program in programs if (bound := max_parallel(program)) is not None]
        self.max_parallel = min(bounds, default=None)

    def linked(self, link: Callable[[Program], Program]) -> BoundOperation:
        return type(self)(self.source, tuple(link(program) for program in self.programs))

    def call(self, argument: object, client: int | None = None) -> object:
        values = cast("tuple[object, ...]", argument)
        count = len(self.source.arguments)
        return self.run(values[:count], values[count:], client)

    def run(self, arguments: Sequence[object], captures: Sequence[object], client: int | None) -> object:
        """Runs the intrinsic.

        Args:
          arguments: The arguments of the intrinsic, except functions.
          captures: The captures of the function.
          client: The index of the client, for error messages; `None` on the server.
        """
        raise NotImplementedError


class SequenceMap(SequenceOperation):
    """The intrinsic `sequence_map`. Elements are computed lazily, while the result is iterated."""

    def run(self, arguments: Sequence[object], captures: Sequence[object], client: int | None) -> object:
        source, program = cast("Iterable[object]", arguments[0]), self.programs[0]
        if elements_at_once(program):
            return MappedColumns(source, self.source.parameters[0], program, captures, client)
        return MappedSequence(source, program, captures, client)


class SequenceReduce(SequenceOperation):
    """The intrinsic `sequence_reduce`, which folds elements from the left, starting from its zero argument."""

    def run(self, arguments: Sequence[object], captures: Sequence[object], client: int | None) -> object:
        elements, accumulator = arguments
        fold = _fold_of(self)
        if fold is not None:
            return fold.run(cast("Iterable[object]", elements), accumulator, captures, client)
        run = ProgramRunner(self.programs[0]).run
        for element in cast("Iterable[object]", elements):
            accumulator = run([(accumulator, element), *captures], client)[0]
        return accumulator


@made_once
def _fold_of(reduce: SequenceReduce) -> ProgramFold | None:
    _, (_, element) = fields_of(cast(StructType, reduce.source.parameters[0]))
    return fold_of(reduce.programs[0], reduce.result, element)


class SequenceSum(SequenceOperation):
    """The intrinsic `sequence_sum`, which adds elements from the left. Integers keep their dtype and wrap around."""

    def run(self, arguments: Sequence[object], captures: Sequence[object], client: int | None) -> object:
        tensors = [(path, tensor) for path, tensor in tensor_leaves(self.result)]
        totals: list[np.ndarray] | None = None
        elements = arguments[0]
        if isinstance(elements, HasColumns):
            columns = list(element_columns(cast("Iterable[object]", elements), self.result, 0, _AT_ONCE))
            elements = ColumnSequence(concatenate(columns, self.result)) if columns else ()
        with np.errstate(all="ignore"):
            if isinstance(elements, ColumnSequence) and elements.batching is None and len(elements):
                arrays = _arrays_of(elements.column)
                if arrays is not None:
                    return unflatten(iter([added_rows(array) for array in arrays]), self.result)
            for element in cast("Iterable[object]", elements):
                leaves = [cast(np.ndarray, leaf) for leaf in flatten(element, self.result)]
                if totals is None:
                    totals = [np.array(leaf) for leaf in leaves]
                    continue
                for total, leaf, (path, _) in zip(totals, leaves, tensors):
                    if total.shape != np.shape(leaf):
                        where = "" if client is None else f" of client {client}"
                        raise TypeMismatchError(
                            f"Expected all elements of a sum to have the same shape, found {list(total.shape)} and "
                            f"{list(np.shape(leaf))} at element{path}{where}"
                        )
                    np.add(total, leaf, out=total)
        if totals is None:
            return unflatten(iter([zero_of(tensor) for _, tensor in tensors]), self.result)
        return unflatten(iter([t[()] if t.ndim == 0 else read_only(t) for t in totals]), self.result)


def _arrays_of(column: Column) -> list[np.ndarray] | None:
    """Returns the arrays of a column, with one row per element; `None` if the elements are not stored in arrays."""
    if isinstance(column, RowsColumn):
        return [column.values]
    if not isinstance(column, StructColumn):
        return None
    found = [_arrays_of(field) for field in column.fields]
    return None if None in found else [array for arrays in found for array in arrays or ()]


def added_rows(rows: np.ndarray) -> object:
    """Returns the sum of an array's rows, which has the same bits as if the rows were added one by one in order."""
    step = _SCRATCH_BYTES // max(1, rows[0].nbytes)
    total = rows[:1]
    if step < 2:
        total = total.copy()
        for row in rows[1:]:
            np.add(total[0], row, out=total[0])
    else:
        for first in range(1, len(rows), step):
            some = np.concatenate([total, rows[first : first + step]])
            total = np.add.accumulate(some, axis=0, dtype=rows.dtype)[-1:]
    return total[0] if rows.ndim == 1 else read_only(total[0].copy())


_OPERATIONS: dict[str, type[SequenceOperation]] = {
    "sequence_map": SequenceMap,
    "sequence_reduce": SequenceReduce,
    "sequence_sum": SequenceSum,
}


class SequenceEngine(PassingEngine):
    """Replaces the sequence intrinsics in programs with operations, and passes on everything else."""

    def runs_intrinsic(self, uri: str) -> bool:
        return uri in _OPERATIONS or super().runs_intrinsic(uri)

    def link(self, program: Program) -> Program:
        return super().link(program.with_operations(_SEQUENCES, _operation))


def _operation(operation: Operation) -> Operation:
    if isinstance(operation, IntrinsicSource) and operation.uri in _OPERATIONS:
        inner = tuple(program.with_operations(_SEQUENCES, _operation) for program in operation.functions)
        return _OPERATIONS[operation.uri](operation, inner)
    return operation


class SequenceExecutor(VerbExecutor):
    """Runs the sequence intrinsics and passes everything else to its target.

    Args:
      target: The executor that runs the functions of the intrinsics. It is closed with this executor.
    """

    def __init__(self, target: Executor) -> None:
        self._target, programs = with_programs(target)
        super().__init__(LazyRecorder(SequenceEngine(programs)), self._target)
