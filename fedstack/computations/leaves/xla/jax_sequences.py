"""Passes sequences to JAX functions, as stacked arrays of a few sizes.

A compiled function has arrays of fixed sizes. The elements of a sequence are therefore stacked and padded to the next
power of two, together with their number, so that sequences of all lengths take few compilations.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.leaf import Convert
from fedstack.computations.leaves.vectorized_leaf import column_leaves
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.argument_memory import fill
from fedstack.computations.leaves.xla.jax_api import Traced
from fedstack.computations.leaves.xla.jax_trees import shown_tree
from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import (
    contains_sequence,
    fields_of,
    flattener,
    tensor_leaves,
    unflatten,
)
from fedstack.computations.values.element_columns import element_columns

# The name of the unknown first size of tensors that are in no sequence.
ROWS = "rows"
# What a message says of elements, because whoever does not know it gets wrong means.
ROWS_OF_ELEMENTS = (
    "whose arrays have a row for each element and then rows of zeros, which a mean would count: mask those from length "
    "on"
)
# The number of elements that are read at a time.
_AT_ONCE = 1024
_State = TypeVar("_State")


class JaxSequence:
    """A sequence that a JAX function receives.

    Args:
      payload: The stacked tensors of the elements, and the number of elements.
      element: The type of an element.
      convert: Converts the payload of an element; `None` if that is the element.
    """

    def __init__(self, payload: object, element: Type, convert: Convert | None) -> None:
        self._rows, self._length = cast("tuple[Sequence[Traced], Traced]", payload)
        self._element = element
        self._convert = convert

    @property
    def length(self) -> Any:
        """The number of elements."""
        return self._length

    @property
    def elements(self) -> Any:
        """The elements as one element, whose arrays are stacked along a first axis.

        Its size is a power of two. Rows beyond the elements are zeros.
        """
        return self._made(self._rows)

    def _made(self, tensors: Sequence[Traced]) -> Any:
        payload = unflatten(iter(tensors), self._element)
        return payload if self._convert is None else self._convert(payload)

    def __iter__(self) -> NoReturn:
        raise TypeError("Expected scan(step, state) to pass over a sequence in a JAX function, found a loop of Python")

    def __bool__(self) -> NoReturn:
        raise TypeError("Expected a comparison of length, which is not known while a JAX function is traced")

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(f"Expected scan(step, state), or elements, {ROWS_OF_ELEMENTS}")

    def scan(self, step: Callable[[_State, Any], _State], state: _State) -> _State:
        """Passes over the elements in order, in a compiled loop.

        The loop as a whole cannot be differentiated backwards, but `step` may differentiate what it likes.

        Args:
          step: Returns the next state, given a state and an element. It is traced once.
          state: The first state: an array, or a tree of arrays. All states must have its shapes and dtypes.

        Returns:
          The last state.

        Raises:
          TypeError: If `step` returns a state of other containers, shapes or dtypes.
        """
        first, following = shown_tree(state), ""

        def take(index: Traced, state: Any) -> Any:
            nonlocal following
            found = step(state, self._made([jax_api.row_of(rows, index) for rows in self._rows]))
            following = shown_tree(found)
            return found

        try:
            return jax_api.folded(take, state, self._length)
        except TypeError as error:
            if following in ("", first):
                raise  # it is another error
            raise TypeError(
                f"Expected the step of scan to return states like the first one, {first}, found {following}; return "
                "the same containers, shapes and dtypes, with jax.tree.map and astype, or pass such a first state"
            ) from error

    def __repr__(self) -> str:
        return f"<JaxSequence of {self._element}>"


def traced_payload(tensors: Iterator[Traced], type_spec: Type) -> object:
    """Returns the payload of a type with sequences, given the tensors of `traced_leaves`."""
    if isinstance(type_spec, SequenceType):
        count = len(list(tensor_leaves(type_spec.element)))
        return [next(tensors) for _ in range(count)], next(tensors)
    if isinstance(type_spec, StructType):
        return tuple([traced_payload(tensors, member) for _, member in fields_of(type_spec)])
    return next(tensors)


def traced_leaves(type_spec: Type) -> list[tuple[TensorType, str]]:
    """Returns the tensors with which a function is traced, each with the name of its unknown first size, if it has one.

    A sequence is the stacked tensors of its elements, and their number.
    """
    found: list[tuple[TensorType, str]] = []

    def visit(one: Type) -> None:
        if isinstance(one, SequenceType):
            steps = f"steps{len(found)}"
            found.extend((_any_number_of(tensor), steps) for _, tensor in tensor_leaves(one.element))
            found.append((TensorType(np.int32), ""))
        elif isinstance(one, StructType):
            for _, member in fields_of(one):
                visit(member)
        else:
            tensor = cast(TensorType, one)
            found.append((tensor, ROWS if None in (tensor.shape or ()) else ""))

    visit(type_spec)
    return found


def elements_of(type_spec: Type) -> Iterator[Type]:
    """Yields the type of the elements of each sequence in a type."""
    if isinstance(type_spec, SequenceType):
        yield type_spec.element
    elif isinstance(type_spec, StructType):
        for _, member in fields_of(type_spec):
            yield from elements_of(member)


def traced_flattener(type_spec: Type) -> Callable[[object], list[object]]:
    """Returns a function that flattens payloads of a type into the tensors of `traced_leaves`."""
    if not contains_sequence(type_spec):
        return flattener(type_spec)

    def visit(payload: object, one: Type, into: list[object]) -> None:
        if isinstance(one, SequenceType):
            into.extend(_padded(cast("Iterable[object]", payload), one.element))
        elif isinstance(one, StructType):
            for member, (_, member_type) in zip(cast("tuple[object, ...]", payload), fields_of(one)):
                visit(member, member_type, into)
        else:
            into.append(payload)

    def flattened(payload: object) -> list[object]:
        found: list[object] = []
        visit(payload, type_spec, found)
        return found

    return flattened


def _any_number_of(tensor: TensorType) -> TensorType:
    return TensorType(tensor.dtype.type, [None, *(tensor.shape or ())])


class ReadSequence:
    """A sequence that has been read, so that its number of elements is known.

    Attributes:
      length: The number of elements.
      steps: The number of rows of its arrays, a power of two.

    Args:
      payload: The sequence.
      element: The type of an element.
    """

    def __init__(self, payload: Iterable[object], element: Type) -> None:
        self._columns = list(element_columns(payload, element, 0, _AT_ONCE))
        self._element = element
        self.length = sum(map(len, self._columns))
        self.steps = 1 << max(0, self.length - 1).bit_length()

    def fill(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Copies the tensors of the elements into arrays of `steps` rows. Rows beyond the elements become zeros."""
        first = 0
        for column in self._columns:
            for rows, (leaf, _) in zip(arrays, column_leaves(column, self._element)):
                fill(rows, leaf, first)
            first += len(column)
        for rows in arrays:
            rows[first:] = 0


def rows_of(type_spec: Type, *sizes: int) -> list[tuple[Sequence[int], np.dtype[Any]]]:
    """Returns the shapes and dtypes of the tensors of values that are stacked along axes of these sizes."""
    tensors = [tensor for _, tensor in tensor_leaves(type_spec)]
    return [((*sizes, *cast("Sequence[int]", tensor.shape or ())), tensor.dtype) for tensor in tensors]


def _padded(payload: Iterable[object], element: Type) -> list[Traced]:
    """Returns the arrays of a sequence, and its length."""
    read = ReadSequence(payload, element)
    arrays = [np.empty(shape, dtype) for shape, dtype in rows_of(element, read.steps)]
    read.fill(arrays)
    return [*arrays, np.int32(read.length)]
