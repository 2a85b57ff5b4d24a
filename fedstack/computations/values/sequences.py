"""Defines the sequences of clients: anything re-iterable, with special support for two kinds of it.

A sequence is *re-iterable* if each iteration starts from the front. An iterator is not: it is empty the second time,
and an empty second epoch is a wrong result without an error. So iterators are refused wherever a sequence enters a
computation.
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
# How many elements are made at a time where they take no memory.
AHEAD = 16
# The limits of the fields in messages.
MAX_SEED_BYTES = 128
MAX_SEED = 256**MAX_SEED_BYTES - 1
MAX_ROUND = 2**64 - 1


def check_re_iterable(sequence: object, path: str = "value") -> None:
    """Refuses what cannot be iterated more than once.

    Args:
      sequence: The object that should be a sequence.
      path: Its path, for error messages.

    Raises:
      TypeMismatchError: If it can be iterated only once, or not at all, or is text, bytes or a mapping.
    """
    name = type(sequence).__name__
    if isinstance(sequence, (str, bytes, bytearray, Mapping)) or not isinstance(sequence, Iterable):
        raise TypeMismatchError(
            f"Expected a re-iterable object of elements, found `{name}`; at {path}; give a list of the elements"
        )
    # Only of iterators is `iter` known to be free: for other objects it may open files.
    if isinstance(sequence, Iterator) and iter(cast("Iterator[object]", sequence)) is sequence:
        raise TypeMismatchError(
            f"Expected an object that can be iterated again, found the one-shot iterator `{name}`; at {path}; "
            "give a list, or `fedstack.from_generator(function)` with the function that makes the iterator"
        )


class FromGenerator(Generic[T]):
    """A client's sequence that calls a function for each iteration, to read data lazily."""

    def __init__(self, function: Callable[[], Iterable[T]]) -> None:
        if not callable(function):
            raise TypeMismatchError(
                f"Expected a function without parameters, found `{type(function).__name__}`; at from_generator; "
                "give the function itself, do not call it"
            )
        self._function = function
        self._last: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        # As a generator, this calls the function only when the first element is requested.
        yield from self.start()

    def start(self, path: str | None = None) -> Iterator[T]:
        """Calls the function and returns the iterator over its result.

        Args:
          path: The path of the sequence, for error messages.
        """
        where = repr(self) if path is None else f"{path}, {self!r}"
        made = cast(object, self._function())  # the user's function need not keep to its type
        kind = type(made).__name__
        if isinstance(made, (str, bytes, bytearray, Mapping)) or not isinstance(made, Iterable):
            raise TypeMismatchError(
                f"Expected the function to return an iterable of elements, found `{kind}`; at {where}; "
                "make it a generator function (yield each element) or let it return a list"
            )
        iterator = iter(cast("Iterable[T]", made))
        # Kept only for this comparison. A used generator holds no data.
        if iterator is self._last:
            raise InvalidValueError(
                f"Expected a new iterator from each call, found the same `{type(iterator).__name__}` twice; "
                f"at {where}; make the iterator inside the function"
            )
        self._last = iterator
        return iterator

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self._function, '__qualname__', repr(self._function))})"


class HasPasses:
    """A sequence whose order may differ from pass to pass.

    The user of the sequence counts the passes; iterating over a payload directly is always pass 0.
    """

    __slots__ = ()

    @property
    def reshuffles(self) -> bool:
        """Whether the order differs from pass to pass."""
        raise NotImplementedError

    def in_pass(self, number: int) -> Iterator[Any]:
        """Iterates over the elements in the order of a pass."""
        raise NotImplementedError


def reshuffles(sequence: object) -> bool:
    """Returns whether the order of a sequence differs from pass to pass."""
    return isinstance(sequence, HasPasses) and sequence.reshuffles


def in_pass(sequence: Iterable[object], number: int) -> Iterator[object]:
    """Iterates over any sequence, in the order of a pass if that matters."""
    return sequence.in_pass(number) if isinstance(sequence, HasPasses) else iter(sequence)


def check_one_order(sequence: object, path: str) -> None:
    """Refuses a sequence whose order differs from pass to pass, where only its elements can be passed on.

    Raises:
      InvalidValueError: If the order differs.
    """
    if reshuffles(sequence):
        raise InvalidValueError(
            f"Expected a sequence of one order, since only its elements can be passed on here, found {sequence!r}, "
            f"which has a new order in each pass; at {path}; give reshuffle=False to fedstack.batches, or, to workers "
            "of this release of fedstack, the batches themselves: map over them at the clients that read them"
        )


def drawn_order(seed: int, key: tuple[int, ...], rows: int) -> NDArray[np.intp]:
    """Returns an order of rows that depends on the seed and the key only, not on the release of NumPy."""
    # From raw words: the numbers that NumPy's generators make of them differ from release to release.
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)).random_raw(rows)
    return np.argsort(words, kind="stable")


@attrs.frozen
class Batching:
    """How the rows of a sequence form its batches.

    Attributes:
      size: The number of rows in a batch.
      drop_remainder: Whether a last batch of fewer rows is left out.
      seed: The seed of the order of the rows; `None` leaves them as they are.
      round: Each value gives another order; with a seed only.
      reshuffles: Whether each pass has another order, too.
    """

    size: int
    drop_remainder: bool = False
    seed: int | None = None
    round: int = 0
    reshuffles: bool = False

    def count(self, rows: int) -> int:
        """Returns the number of batches of so many rows."""
        whole, rest = divmod(rows, self.size)
        return whole + (rest > 0 and not self.drop_remainder)

    def sizes(self, rows: int) -> set[int]:
        """Returns the sizes of the batches of so many rows."""
        whole, rest = divmod(rows, self.size)
        return {size for size, found in ((self.size, whole), (rest, rest and not self.drop_remainder)) if found}

    def cuts(self, rows: int, number: int) -> Iterator["slice | NDArray[np.intp]"]:
        """Yields the rows of each batch in a pass."""
        order = self.order(rows, number)
        for start in range(0, self.count(rows) * self.size, self.size):
            cut = slice(start, start + self.size)
            yield cut if order is None else order[cut]

    def order(self, rows: int, number: int) -> "NDArray[np.intp] | None":
        """Returns the order of the rows in a pass; `None` if they stay as they are."""
        if self.seed is None:
            return None
        return drawn_order(self.seed, (self.round, number if self.reshuffles else 0), rows)

    def __repr__(self) -> str:
        order = "" if self.seed is None else f", shuffle_seed={self.seed}, round={self.round}"
        return f"{counted(self.size, 'row')} each{order}" + ", reshuffle=False" * (
            self.seed is not None and not self.reshuffles
        )


class Batches(HasPasses):
    """A client's sequence of slices along the first dimension of arrays; made by `fedstack.batches`.

    Attributes:
      arrays: Read-only arrays of shape [num_rows, ...], in dictionaries and tuples nested at will.
      num_rows: The number of examples.
      batching: How the rows form batches.
      fitting: The last element type that they fit, and their payload for it.
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
            yield _mapped(self.arrays, functools.partial(take, rows=rows))

    def over(self, replace: Callable[[NDArray[Any]], NDArray[Any]]) -> "Batches":
        """Returns the batches with each array replaced by what `replace` returns, read-only and of the same shape."""
        return Batches(_mapped(self.arrays, replace), self.num_rows, self.batching)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(self.num_rows, 'row')}, {self.batching})"


def _mapped(arrays: Any, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Returns the same containers with a function applied to each array."""
    if type(arrays) is dict:
        return {key: _mapped(value, function) for key, value in cast("dict[Any, Any]", arrays).items()}
    if isinstance(arrays, dict):
        parts = cast("dict[Any, Any]", arrays)
        return type(parts)((key, _mapped(value, function)) for key, value in parts.items())
    if isinstance(arrays, tuple):
        made = [_mapped(value, function) for value in cast("tuple[Any, ...]", arrays)]
        make = getattr(cast("Any", arrays), "_make", None)
        return tuple(made) if make is None else make(made)
    return function(cast("NDArray[Any]", arrays))


def take(array: NDArray[Any], rows: "slice | NDArray[np.intp]") -> NDArray[Any]:
    """Returns the rows of a batch, read-only."""
    if type(rows) is slice:
        return array[rows]  # a view of a read-only array is read-only
    # In a third of the time that indexing takes.
    batch = np.asarray(array).take(rows, axis=0)
    batch.flags.writeable = False
    return batch
