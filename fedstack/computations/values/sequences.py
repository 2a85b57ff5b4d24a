"""Defines clients' sequences: any re-iterable objects, with special support for generators and batches.

A sequence is *re-iterable* if each iteration starts at the first element. Iterators are not re-iterable: the second
iteration yields no elements, so that a second epoch would silently produce a wrong result. Therefore iterators are
rejected wherever a sequence enters a computation.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import counted

T = TypeVar("T")
# The number of elements that are created at a time if the elements take up no memory of their own.
AHEAD = 16
# The limits of the protobuf fields that hold these numbers.
MAX_SEED_BYTES = 128
MAX_SEED = 256**MAX_SEED_BYTES - 1
MAX_ROUND = 2**64 - 1


def check_re_iterable(sequence: object, path: str = "value") -> None:
    """Checks that an object can be iterated more than once.

    Args:
      sequence: The object.
      path: The path of the object, for error messages.

    Raises:
      TypeMismatchError: If the object can be iterated only once or not at all, or is text, bytes or a mapping.
    """
    name = type(sequence).__name__
    if isinstance(sequence, (str, bytes, bytearray, Mapping)) or not isinstance(sequence, Iterable):
        raise TypeMismatchError(
            f"Expected a list or another re-iterable object, found `{name}`; at {path}; pass a list of the elements"
        )
    # Calling `iter` on an iterator is free, whereas for other objects the call may open files.
    if isinstance(sequence, Iterator) and iter(cast("Iterator[object]", sequence)) is sequence:
        raise TypeMismatchError(
            f"Expected an object that can be iterated again, found a one-shot iterator `{name}`; at {path}; "
            "pass a list, or `fedstack.from_generator(function)` with the function that creates the iterator"
        )


class FromGenerator(Generic[T]):
    """A client's sequence that calls a function for each iteration, so that data is read lazily."""

    def __init__(self, function: Callable[[], Iterable[T]]) -> None:
        if not callable(function):
            raise TypeMismatchError(
                f"Expected a function without parameters, found `{type(function).__name__}`; at from_generator; "
                "pass the function itself instead of calling it"
            )
        self._function = function
        self._last: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        # Because this method is a generator, the function is called only when the first element is requested.
        yield from self.start()

    def start(self, path: str | None = None) -> Iterator[T]:
        """Calls the function and returns the iterator over its result.

        Args:
          path: The path of the sequence, for error messages.
        """
        where = repr(self) if path is None else f"{path}, {self!r}"
        made = cast(object, self._function())  # the user's function may return another type than it declares
        kind = type(made).__name__
        if isinstance(made, (str, bytes, bytearray, Mapping)) or not isinstance(made, Iterable):
            raise TypeMismatchError(
                f"Expected the function to return an iterable of elements, found `{kind}`; at {where}; "
                "write it as a generator function (yield each element), or return a list"
            )
        iterator = iter(cast("Iterable[T]", made))
        # The iterator is kept only for this comparison. An exhausted generator contains no data.
        if iterator is self._last:
            raise InvalidValueError(
                f"Expected a new iterator from each call, found the same `{type(iterator).__name__}` twice; "
                f"at {where}; create the iterator inside the function"
            )
        self._last = iterator
        return iterator

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self._function, '__qualname__', repr(self._function))})"


class HasPasses:
    """A sequence whose order may differ between passes.

    The code that uses the sequence counts the passes. Direct iteration over a payload is always pass 0.
    """

    __slots__ = ()

    @property
    def reshuffles(self) -> bool:
        """Whether the order differs between passes."""
        raise NotImplementedError

    def in_pass(self, number: int) -> Iterator[Any]:
        """Iterates over the elements in the order of the pass with the given number."""
        raise NotImplementedError


def reshuffles(sequence: object) -> bool:
    """Returns whether the order of a sequence differs between passes."""
    return isinstance(sequence, HasPasses) and sequence.reshuffles


def in_pass(sequence: Iterable[object], number: int) -> Iterator[object]:
    """Iterates over any sequence. If its order differs between passes, the given pass determines the order."""
    return sequence.in_pass(number) if isinstance(sequence, HasPasses) else iter(sequence)


def check_one_order(sequence: object, path: str) -> None:
    """Checks that the order of a sequence is the same in each pass, for receivers that accept only its elements.

    Raises:
      InvalidValueError: If the order differs between passes.
    """
    if reshuffles(sequence):
        raise InvalidValueError(
            f"Expected a sequence with a fixed order, since only its elements are passed on, found "
            f"{sequence!r}, which has a new order in each pass; at {path}; pass reshuffle=False to fedstack.batches, "
            "or use workers of the same fedstack release and map over the batches on the clients that read them"
        )


def drawn_order(seed: int, key: tuple[int, ...], rows: int) -> NDArray[np.intp]:
    """Returns a random order of rows that depends only on the seed and the key, not on the version of NumPy."""
    # Raw words are used because the numbers that NumPy's generators derive from them differ between releases.
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)).random_raw(rows)
    return np.argsort(words, kind="stable")


@attrs.frozen
class Batching:
    """The rule by which the rows of a sequence form batches.

    Attributes:
      size: The number of rows in a batch.
      drop_remainder: Whether a last batch with fewer rows is omitted.
      seed: The seed for the order of the rows; `None` keeps the original order.
      round: The number of the round. With a seed, each round has a different order.
      reshuffles: Whether each pass has a different order as well.
    """

    size: int
    drop_remainder: bool = False
    seed: int | None = None
    round: int = 0
    reshuffles: bool = False

    def count(self, rows: int) -> int:
        """Returns the number of batches for the given number of rows."""
        whole, rest = divmod(rows, self.size)
        return whole + (rest > 0 and not self.drop_remainder)

    def sizes(self, rows: int) -> set[int]:
        """Returns the different batch sizes for the given number of rows."""
        whole, rest = divmod(rows, self.size)
        return {size for size, found in ((self.size, whole), (rest, rest and not self.drop_remainder)) if found}

    def cuts(self, rows: int, number: int) -> Iterator["slice | NDArray[np.intp]"]:
        """Yields the indices of the rows of each batch in a pass."""
        order = self.order(rows, number)
        for start in range(0, self.count(rows) * self.size, self.size):
            cut = slice(start, start + self.size)
            yield cut if order is None else order[cut]

    def order(self, rows: int, number: int) -> "NDArray[np.intp] | None":
        """Returns the order of the rows in a pass, or `None` for the original order."""
        if self.seed is None:
            return None
        return drawn_order(self.seed, (self.round, number if self.reshuffles else 0), rows)

    def __repr__(self) -> str:
        order = "" if self.seed is None else f", shuffle_seed={self.seed}, round={self.round}"
        return f"{counted(self.size, 'row')} each{order}" + ", reshuffle=False" * (
            self.seed is not None and not self.reshuffles
        )


class Batches(HasPasses):
    """A client's sequence of slices along the first dimension of arrays, created by `fedstack.batches`.

    Attributes:
      arrays: Read-only arrays of shape [num_rows, ...], in arbitrarily nested dictionaries and tuples.
      num_rows: The number of rows.
      batching: The rule by which the rows form batches.
      fitting: The last element type that the batches matched, and their payload for this type; initially `None`.
    """

    def __init__(self, arrays: object, num_rows: int, batching: Batching) -> None:
        self.arrays = arrays
        self.num_rows = num_rows
        self.batching = batching
        self.fitting: tuple[object, object] | None = None
        self._passes = 0

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "fitting": None}

    def __len__(self) -> int:
        return self.batching.count(self.num_rows)

    @property
    def reshuffles(self) -> bool:
        return self.batching.reshuffles

    def __iter__(self) -> Iterator[Any]:
        number = self._passes
        self._passes += 1
        return self.in_pass(number)

    def in_pass(self, number: int) -> Iterator[Any]:
        for rows in self.batching.cuts(self.num_rows, number):
            yield mapped_arrays(self.arrays, functools.partial(take, rows=rows))

    def over(self, replace: Callable[[NDArray[Any]], NDArray[Any]]) -> "Batches":
        """Returns batches in which `replace` has replaced each array by a read-only array of the same shape."""
        return Batches(mapped_arrays(self.arrays, replace), self.num_rows, self.batching)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(self.num_rows, 'row')}, {self.batching})"


def mapped_arrays(arrays: Any, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Applies a function to each array and returns the results in the same containers."""
    if type(arrays) is dict:
        return {key: mapped_arrays(value, function) for key, value in cast("dict[Any, Any]", arrays).items()}
    if isinstance(arrays, dict):
        parts = cast("dict[Any, Any]", arrays)
        return type(parts)((key, mapped_arrays(value, function)) for key, value in parts.items())
    if isinstance(arrays, tuple):
        made = [mapped_arrays(value, function) for value in cast("tuple[Any, ...]", arrays)]
        make = getattr(cast("Any", arrays), "_make", None)
        return tuple(made) if make is None else make(made)
    return function(cast("NDArray[Any]", arrays))


def take(array: NDArray[Any], rows: "slice | NDArray[np.intp]") -> NDArray[Any]:
    """Returns the rows of a batch as a read-only array."""
    if type(rows) is slice:
        return array[rows]  # a view of a read-only array is read-only
    # `take` takes a third of the time of indexing.
    batch = np.asarray(array).take(rows, axis=0)
    batch.flags.writeable = False
    return batch
