"""Checks the types of datasets' elements, applies computations to elements, and iterates over elements."""

import collections
import contextlib
import itertools
import operator
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast

from fedstack.computations.leaves.leaf_runtimes import leaf_name
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import ProgramRunner, run_columns
from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.program import Program, closed_program
from fedstack.computations.types.language import (
    ConcreteComputation,
    FunctionType,
    StructType,
    Type,
    computation_pb2,
    to_type,
)
from fedstack.computations.types.type_structure import (
    contains_federated,
    contains_function,
    fields_of,
    tensor_leaves,
    type_from_proto,
)
from fedstack.computations.values.column_sequence import lists_of
from fedstack.computations.values.columns import Column, Payload, column_from_payloads
from fedstack.errors import FedstackError, InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.coroutines import RunInline
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.leaf_executor import LeafEngine
from fedstack.executors.sequence_executor import SequenceEngine
from fedstack.foundations.error_text import with_place
from fedstack.foundations.value_text import describe
from fedstack.service.data.reading.blocks import tensor_of_rows
from fedstack.service.data.reading.budget import Blocks, BlockSize
from fedstack.service.data.reading.dataset_scope import dataset_scope

# The maximum number of dimensions that every supported version of NumPy allows.
_MOST_DIMENSIONS = 32
# Converts a payload to the form that users see.
Shown = Callable[[Any], Any]


def type_of(spec: object, where: str) -> Type:
    """Converts a type specified by a user into a type of the language.

    Raises:
      TypeMismatchError: If `spec` cannot be converted.
    """
    try:
        return to_type(spec)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(
            f"Expected a type for {where}, found {describe(spec)}; pass a dtype such as np.int64, or a dict of types"
        ) from error


def checked_element(element: Type) -> Type:
    """Checks that a type is permitted for elements, and returns the type.

    Raises:
      InvalidComputationError: If the type contains anything other than tensors and structs of tensors, a tensor with
        more dimensions than arrays can have, or a struct in which only some members have names.
    """
    for path, tensor in tensor_leaves(element):
        if tensor.shape is not None and len(tensor.shape) > _MOST_DIMENSIONS:
            raise InvalidComputationError(
                f"Expected at most {_MOST_DIMENSIONS} dimensions in {path or 'the element'}, found "
                f"{len(tensor.shape)}; nest fewer batches"
            )
    shower(element)
    return element


def laid_out(arrays: object, path: str) -> tuple[Type, object]:
    """Returns the type of the rows of nested arrays, and the same arrays in nested tuples."""
    if isinstance(arrays, dict):
        found = {str(k): laid_out(v, f"{path}[{k!r}]") for k, v in cast("dict[object, object]", arrays).items()}
        return StructType([(k, t) for k, (t, _) in found.items()]), tuple(members for _, members in found.values())
    if isinstance(arrays, tuple):
        names = cast("tuple[str, ...] | None", getattr(cast(object, arrays), "_fields", None))
        parts = [laid_out(part, f"{path}[{k}]") for k, part in enumerate(cast("tuple[object, ...]", arrays))]
        types = [t for t, _ in parts]
        return StructType(types if names is None else list(zip(names, types))), tuple(members for _, members in parts)
    tensor = tensor_of_rows(cast(Any, arrays))
    if tensor is None:
        raise TypeMismatchError(
            f"Expected an array of numbers or text at {path}, found {describe(arrays)}; convert the array first"
        )
    return tensor, arrays


def shower(element: Type) -> Shown | None:
    """Returns the function that converts payloads to the form that users see, or `None` if payloads have that form."""
    if not isinstance(element, StructType):
        return None
    names = [name for name, _ in fields_of(element)]
    members = [shower(t) for _, t in fields_of(element)]
    if None in names and any(names):
        raise InvalidComputationError(
            f"Expected a struct whose members all have names or all lack names, found {element}; name all members or "
            "none"
        )
    if not any(members):
        return (lambda payload: dict(zip(names, payload))) if any(names) else None
    each = [show or _same for show in members]
    if names[0]:
        return lambda payload: {name: show(member) for name, show, member in zip(names, each, payload)}
    return lambda payload: tuple([show(member) for show, member in zip(each, payload)])


def _same(payload: object) -> object:
    return payload


class Lists(Iterator[Sequence[object]]):
    """Iterates over the elements of blocks, in lists. Only one thread or task at a time may use an instance.

    Args:
      blocks: The blocks of elements.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._lists = lists_of(blocks)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def alone(self) -> Generator[None, None, None]:
        """Returns a context manager that excludes other readers.

        Raises:
          InvalidValueError: If another thread or task is reading.
        """
        if not self._lock.acquire(blocking=False):
            raise InvalidValueError(
                "Another thread or task is waiting for elements of this iterator; create a separate iterator for each "
                "thread or task, or read in a single thread or task"
            )
        try:
            yield
        finally:
            self._lock.release()

    def __next__(self) -> Sequence[object]:
        with self.alone():
            return next(self._lists)

    def take(self) -> Sequence[object] | None:
        """Returns the next list, or `None` after the last list. Must be called within `alone`."""
        return next(self._lists, None)

    def close(self) -> None:
        """Stops reading. Idempotent."""
        with contextlib.suppress(ValueError):  # another thread is reading, but its result is no longer needed
            cast("Generator[Sequence[object], None, None]", self._lists).close()


class PlainIterator(itertools.chain[Any]):
    """Iterates over the elements of a dataset, but supports only `for` loops.

    The class extends `itertools.chain`, which avoids calling a Python function for each element.
    """

    _lists: Lists

    @classmethod
    def over(cls, blocks: Blocks, shown: Shown | None) -> "PlainIterator":
        """Returns an iterator over blocks of elements; the arguments are those of `ElementIterator`."""
        lists = Lists(blocks)
        found = cls.from_iterable(lists if shown is None else (map(shown, some) for some in lists))
        found = cast(PlainIterator, found)
        found._lists = lists
        return found

    def close(self) -> None:
        """Stops reading, unless another thread is waiting for elements. Idempotent."""
        with contextlib.suppress(InvalidValueError):
            with self._lists.alone():
                self._lists.close()
            collections.deque(self, maxlen=0)  # discards the rest of the current list


class ElementIterator(Iterator[Any]):
    """An iterator over the elements of a dataset.

    Args:
      blocks: The blocks of elements.
      shown: Converts a payload to the form that users see; `None` if payloads already have that form.
    """

    def __init__(self, blocks: Blocks, shown: Shown | None) -> None:
        self._lists = Lists(blocks)
        self._shown = shown
        self._threads: LeafThreads | None = None
        self._go_on(())

    def _go_on(self, some: Sequence[object]) -> None:
        self._some = iter(some)
        self._elements = self._some if self._shown is None else map(self._shown, self._some)

    @property
    def _left(self) -> int:
        """The number of elements of the current list that have not been returned yet."""
        return operator.length_hint(self._some)

    def __iter__(self) -> "ElementIterator":
        return self

    def __next__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            with self._lists.alone():
                if not self._left:  # otherwise another thread has fetched a list in the meantime
                    some = self._lists.take()
                    if some is None:
                        raise StopIteration
                    self._go_on(some)

    def __aiter__(self) -> "ElementIterator":
        return self

    async def __anext__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            threads = self._threads = self._threads or LeafThreads(1)
            with self._lists.alone():
                some = await threads.run(self._lists.take, cancel=self._interrupt)
                if some is None:
                    raise StopAsyncIteration
                self._go_on(some)

    def close(self) -> None:
        """Stops reading. Idempotent."""
        self._go_on(())
        self._lists.close()

    def _interrupt(self) -> None:
        """Stops reading because the waiting task was cancelled."""
        self.close()

    async def aclose(self) -> None:
        """Closes the iterator; required by `contextlib.aclosing`."""
        self.close()


class ElementFunction:
    """A computation without placements that is applied to elements.

    Args:
      computation: The computation, as an object or as a message. It is loaded on first use, under the carrier policy
        that applies when this object is created.
      where: The name of the function that received the computation, for error messages.

    Attributes:
      computation: The computation as a message.
      name: The computation's name, for messages; empty for a composition of several computations.
      type: The type of the computation.

    Raises:
      InvalidComputationError: If `computation` is not a computation, or has placements.
    """

    def __init__(self, computation: object, where: str) -> None:
        self._source, self._where = computation, where  # the source keeps a Python function alive
        self._policy = current_scope().policy
        if isinstance(computation, ConcreteComputation):
            computation = computation.to_proto()
        if not isinstance(computation, computation_pb2.Computation):
            raise InvalidComputationError(
                f"Expected a computation for {where}, found {describe(computation)}; decorate the function with "
                "fedstack.python_computation"
            )
        found = type_from_proto(computation.type)
        if not isinstance(found, FunctionType) or contains_federated(found) or contains_function(found.result):
            raise InvalidComputationError(
                f"Expected a function for {where} that has no placements and does not return a function, found {found}"
            )
        self.computation = computation
        self.type = found
        self.name = leaf_name(computation)
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        """The program of the computation, ready to run.

        Raises:
          CarrierError: If the computation cannot be loaded in this process.
        """
        if self._program is None:
            engine = SequenceEngine(LeafEngine(LeafThreads(), None, None))
            scope = current_scope()
            rules = scope if self._policy is scope.policy or self._policy is None else scope.under(self._policy)
            with rules.entered(), RunInline():  # the caller waits until loading has ended
                self._program = engine.link(closed_program(plans.plan(self.computation)))
        return self._program

    def applied(self, blocks: Blocks, place: Callable[[int], str]) -> Iterator[tuple[Column, Column]]:
        """Yields pieces of blocks, each with the function's results for the elements of the piece.

        The first pieces are small. Later pieces are larger, but a piece is never so large that its first result is
        delayed for long.

        Args:
          blocks: The blocks of elements.
          place: Describes the element with a given index, for error messages.

        Raises:
          FedstackError: If the function fails for an element. The results for all earlier elements are yielded before
            the error is raised, and the message identifies the element.
        """
        program, pace = self.program, BlockSize(self.type.result)
        index = 0
        for block in blocks:
            first = 0
            while first < len(block):
                piece = block.slice(first, min(first + pace.rows, len(block)))
                first += len(piece)
                clock = dataset_scope().clock
                begun = clock()
                try:
                    (made,) = run_columns(program, [piece], 0, len(piece))
                except FedstackError:
                    # Run each element separately to yield the results before the failing element, and to name the
                    # element in the error.
                    yield from self._one_by_one(piece, index, place)
                else:
                    pace.note(made, clock() - begun)
                    yield piece, made
                index += len(piece)

    def _one_by_one(self, piece: Column, first: int, place: Callable[[int], str]) -> Iterator[tuple[Column, Column]]:
        run = ProgramRunner(self.program).run
        for index, payload in enumerate(piece.items()):
            try:
                made = run([payload], None)
            except FedstackError as error:
                raise with_place(error, place(first + index)) from error.__cause__
            yield piece.slice(index, index + 1), column_from_payloads(made, self.type.result)

    def check_reduces(self, element: Type) -> Type:
        """Checks that the function takes a state and an element and returns a state, and returns the state's type.

        Raises:
          TypeMismatchError: If the function has another type.
        """
        state = self.type.result
        self.check_takes(StructType([state, element]), "reduce")
        return state

    def reduced(self, state: Payload, blocks: Blocks) -> Payload:
        """Applies the function to a state and each element in turn, and returns the last state."""
        run = ProgramRunner(self.program).run
        for index, payload in enumerate(itertools.chain.from_iterable(lists_of(blocks))):
            try:
                (state,) = run([(state, payload)], None)
            except FedstackError as error:
                raise with_place(error, f"at element {index} of reduce({self!r})") from error.__cause__
        return state

    def check_takes(self, element: Type, where: str) -> None:
        """Checks that the function accepts elements of a type.

        Raises:
          TypeMismatchError: If the function does not accept the elements.
        """
        if self.type.parameter is None or not self.type.parameter.is_assignable_from(element):
            raise TypeMismatchError(
                f"Expected {where} to receive a function that takes {element}, found {self} of type {self.type}; "
                "declare its parameter with the type of the dataset's elements"
            )

    def __reduce__(self) -> tuple[type["ElementFunction"], tuple[object, str]]:
        """Supports pickling, because Python functions that are sent to other processes may refer to a dataset."""
        return ElementFunction, (self._source, self._where)  # without state that exists only in this process

    def __repr__(self) -> str:
        return self.name or "a computation"
