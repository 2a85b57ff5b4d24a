"""Checks the types of datasets' elements, applies computations to elements, and iterates over them."""

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

# The maximum that every version of NumPy supports.
_MOST_DIMENSIONS = 32
# Converts a payload to the form that users see.
Shown = Callable[[Any], Any]


def type_of(spec: object, where: str) -> Type:
    """Returns the type that users specify.

    Raises:
      TypeMismatchError: If `spec` is not a type.
    """
    try:
        return to_type(spec)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(f"Expected a type, found {describe(spec)}; at {where}") from error


def checked_element(element: Type) -> Type:
    """Returns a type that elements may have.

    Raises:
      InvalidComputationError: If it contains anything but tensors, tensors with more dimensions than arrays can have,
        or structs in which only some members have names.
    """
    for path, tensor in tensor_leaves(element):
        if tensor.shape is not None and len(tensor.shape) > _MOST_DIMENSIONS:
            raise InvalidComputationError(
                f"Expected elements of at most {_MOST_DIMENSIONS} dimensions, found {len(tensor.shape)}; "
                f"at {path or 'the element'}; put fewer batches into batches"
            )
    shower(element)
    return element


def laid_out(arrays: object, path: str) -> tuple[Type, object]:
    """Returns the type of the rows of nested arrays, and the arrays in nested tuples."""
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
        raise TypeMismatchError(f"Expected numbers or text, found {describe(arrays)}; at {path}; convert it first")
    return tensor, arrays


def shower(element: Type) -> Shown | None:
    """Returns the function that converts a payload to the form that users see; `None` if both are the same."""
    if not isinstance(element, StructType):
        return None
    names = [name for name, _ in fields_of(element)]
    members = [shower(t) for _, t in fields_of(element)]
    if None in names and any(names):
        raise InvalidComputationError(f"Expected members with names or without, found {element}; name all or none")
    if not any(members):
        return (lambda payload: dict(zip(names, payload))) if any(names) else None
    each = [show or _same for show in members]
    if names[0]:
        return lambda payload: {name: show(member) for name, show, member in zip(names, each, payload)}
    return lambda payload: tuple([show(member) for show, member in zip(each, payload)])


def _same(payload: object) -> object:
    return payload


class Lists(Iterator[Sequence[object]]):
    """The elements of blocks as lists, for one thread or task at a time.

    Args:
      blocks: The elements.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._lists = lists_of(blocks)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def alone(self) -> Generator[None, None, None]:
        """Encloses exclusive reading.

        Raises:
          InvalidValueError: If another thread or task is reading.
        """
        if not self._lock.acquire(blocking=False):
            raise InvalidValueError(
                "Expected one thread or task at a time to ask an iterator for elements, found another one that waits "
                "for some; give each an iterator of its own, or let one read for all"
            )
        try:
            yield
        finally:
            self._lock.release()

    def __next__(self) -> Sequence[object]:
        with self.alone():
            return next(self._lists)

    def take(self) -> Sequence[object] | None:
        """Returns the next list; `None` after the last. Call it within `alone`."""
        return next(self._lists, None)

    def close(self) -> None:
        """Stops reading. Idempotent."""
        with contextlib.suppress(ValueError):  # a thread is reading, but its result is not wanted
            cast("Generator[Sequence[object], None, None]", self._lists).close()


class PlainIterator(itertools.chain[Any]):
    """An iterator over the elements of a dataset only for `for` loops, which avoids a Python call per element."""

    _lists: Lists

    @classmethod
    def over(cls, blocks: Blocks, shown: Shown | None) -> "PlainIterator":
        """Returns an iterator; the arguments are those of an `ElementIterator`."""
        lists = Lists(blocks)
        found = cls.from_iterable(lists if shown is None else (map(shown, some) for some in lists))
        found = cast(PlainIterator, found)
        found._lists = lists
        return found

    def close(self) -> None:
        """Stops reading, unless another thread waits for elements. Idempotent."""
        with contextlib.suppress(InvalidValueError):
            with self._lists.alone():
                self._lists.close()
            collections.deque(self, maxlen=0)  # drops the rest of the current list


class ElementIterator(Iterator[Any]):
    """An iterator over the elements of a dataset.

    Args:
      blocks: Yields the elements.
      shown: Converts an element to the form that users see; `None` if both are the same.
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
        """The number of elements of the current list that have not been requested."""
        return operator.length_hint(self._some)

    def __iter__(self) -> "ElementIterator":
        return self

    def __next__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            with self._lists.alone():
                if not self._left:  # else another thread has advanced meanwhile
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
        """Stops reading, since the task that waited was cancelled."""
        self.close()

    async def aclose(self) -> None:
        """Does the same as `close`, for `contextlib.aclosing`."""
        self.close()


class ElementFunction:
    """A computation without placements that applies to elements.

    Args:
      computation: The computation, as an object or as a message. It is loaded on first use, under the policy that is in
        force when this object is made.
      where: The function that got the computation, for error messages.

    Attributes:
      computation: The computation as a message.
      name: Its name in messages; empty if it is composed of several.
      type: The type of the computation.

    Raises:
      InvalidComputationError: If it is not such a computation.
    """

    def __init__(self, computation: object, where: str) -> None:
        self._source, self._where = computation, where  # the source keeps a Python function alive
        self._policy = current_scope().policy
        if isinstance(computation, ConcreteComputation):
            computation = computation.to_proto()
        if not isinstance(computation, computation_pb2.Computation):
            raise InvalidComputationError(
                f"Expected a computation, found {describe(computation)}; at {where}; decorate the function with "
                "fedstack.python_computation"
            )
        found = type_from_proto(computation.type)
        if not isinstance(found, FunctionType) or contains_federated(found) or contains_function(found.result):
            raise InvalidComputationError(
                f"Expected a function of values without placements, found {found}; at {where}"
            )
        self.computation = computation
        self.type = found
        self.name = leaf_name(computation)
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        """The program of the computation, ready to run.

        Raises:
          CarrierError: If it cannot be loaded here.
        """
        if self._program is None:
            engine = SequenceEngine(LeafEngine(LeafThreads(), None, None))
            scope = current_scope()
            rules = scope if self._policy is scope.policy or self._policy is None else scope.under(self._policy)
            with rules.entered(), RunInline():  # the caller waits for it
                self._program = engine.link(closed_program(plans.plan(self.computation)))
        return self._program

    def applied(self, blocks: Blocks, place: Callable[[int], str]) -> Iterator[tuple[Column, Column]]:
        """Yields pieces of blocks, each with the results of the function for its elements.

        A piece is small at first, and never so large that its first element waits long for its last one.

        Args:
          blocks: The elements.
          place: Describes an element by its index among them, for error messages.

        Raises:
          FedstackError: The error of the function, after the results for all earlier elements; the message says at
            which element it failed.
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
                    # Once more, to yield the results before the failing element, and to name it in the error.
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
        """Checks that the function takes a state and an element and returns a state; returns the type of the state.

        Raises:
          TypeMismatchError: If it does not.
        """
        state = self.type.result
        self.check_takes(StructType([state, element]), "reduce")
        return state

    def reduced(self, state: Payload, blocks: Blocks) -> Payload:
        """Applies the function to a state and each element in turn; returns the last state."""
        run = ProgramRunner(self.program).run
        for index, payload in enumerate(itertools.chain.from_iterable(lists_of(blocks))):
            try:
                (state,) = run([(state, payload)], None)
            except FedstackError as error:
                raise with_place(error, f"at element {index} of reduce({self!r})") from error.__cause__
        return state

    def check_takes(self, element: Type, where: str) -> None:
        """Checks that elements of a type fit the function's parameter.

        Raises:
          TypeMismatchError: If they do not.
        """
        if self.type.parameter is None or not self.type.parameter.is_assignable_from(element):
            raise TypeMismatchError(
                f"Expected a function of {element}, found {self} of type {self.type}; at {where}; "
                "declare it for the elements of the dataset"
            )

    def __reduce__(self) -> tuple[type["ElementFunction"], tuple[object, str]]:
        """Supports pickling: Python functions that carry a dataset to other processes refer to it."""
        return ElementFunction, (self._source, self._where)  # and no state of this process

    def __repr__(self) -> str:
        return self.name or "a computation"
