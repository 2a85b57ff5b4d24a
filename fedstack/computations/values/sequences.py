"""Sequences as clients have them: anything re-iterable, and two kinds that values know more about.

A sequence is *re-iterable* if it starts again from the front whenever it is iterated. An iterator does not: it is empty
the second time, and an empty second epoch is a wrong result without an error. So iterators are refused by name wherever
a sequence enters a computation.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError, TypeMismatchError

T = TypeVar("T")
# How many elements are made ready at a time where that takes no memory.
AHEAD = 16


def check_re_iterable(sequence: object, path: str = "value") -> None:
    """Refuses what cannot be iterated more than once.

    Args:
      sequence: The object that should be a sequence.
      path: Where it stands, for messages.

    Raises:
      TypeMismatchError: If it can be iterated only once, or not at all, or is text, bytes or a mapping.
    """
    name = type(sequence).__name__
    if isinstance(sequence, (str, bytes, bytearray, Mapping)) or not isinstance(sequence, Iterable):
        raise TypeMismatchError(
            f"Expected a re-iterable object of elements, found `{name}`; at {path}; give a list of the elements"
        )
    # Only for iterators is `iter` known to be free: elsewhere it may open files.
    if isinstance(sequence, Iterator) and iter(cast("Iterator[object]", sequence)) is sequence:
        raise TypeMismatchError(
            f"Expected an object that can be iterated again, found the one-shot iterator `{name}`; at {path}; "
            "give a list, or `fedstack.from_generator(function)` with the function that makes the iterator"
        )


class FromGenerator(Generic[T]):
    """A client's sequence that calls a function for each iteration, so that data can be read lazily each time."""

    def __init__(self, function: Callable[[], Iterable[T]]) -> None:
        if not callable(function):
            raise TypeMismatchError(
                f"Expected a function without parameters, found `{type(function).__name__}`; at from_generator; "
                "give the function itself, do not call it"
            )
        self._function = function
        self._last: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        # Being a generator itself, this calls the function only when the first element is asked for.
        yield from self.start()

    def start(self, path: str | None = None) -> Iterator[T]:
        """Calls the function and returns the iterator over what it returned.

        Args:
          path: Where the sequence stands, for messages.
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
        # Kept for this one comparison. A used generator holds no data.
        if iterator is self._last:
            raise InvalidValueError(
                f"Expected a new iterator from each call, found the same `{type(iterator).__name__}` twice; "
                f"at {where}; make the iterator inside the function"
            )
        self._last = iterator
        return iterator

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self._function, '__qualname__', repr(self._function))})"


class Batches:
    """A client's sequence of slices along the first dimension of arrays; made by `fedstack.batches`.

    Args:
      arrays: Read-only arrays of shape [num_rows, ...], in dictionaries and tuples nested at will.
      num_rows: The number of examples.
      batch_size: The number of examples in a batch.
      shuffle_seed: Draws the order of the examples, the same one for each iteration; `None` leaves them as they are.
      drop_remainder: Whether the examples that do not fill a batch are left out.
    """

    def __init__(
        self, arrays: object, num_rows: int, batch_size: int, *, shuffle_seed: int | None, drop_remainder: bool
    ) -> None:
        self._arrays = arrays
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._shuffle_seed = shuffle_seed
        self._drop_remainder = drop_remainder

    def __len__(self) -> int:
        whole, rest = divmod(self._num_rows, self._batch_size)
        return whole + (rest > 0 and not self._drop_remainder)

    def __iter__(self) -> Iterator[Any]:
        for rows in self._rows():
            yield _mapped(self._arrays, functools.partial(_take, rows=rows))

    def _rows(self) -> Iterator["slice | NDArray[np.intp]"]:
        """Yields the rows of each batch."""
        starts = range(0, len(self) * self._batch_size, self._batch_size)
        if self._shuffle_seed is None:
            for start in starts:
                yield slice(start, start + self._batch_size)
        else:
            # Drawn again for each iteration: the order is the same, and nothing is held between iterations.
            order = np.random.default_rng(self._shuffle_seed).permutation(self._num_rows)
            for start in starts:
                yield order[start : start + self._batch_size]

    def over(self, replace: Callable[[NDArray[Any]], NDArray[Any]]) -> "Batches":
        """Returns the same batches over what `replace` returns for each array, of the same shape and read-only."""
        made = copy.copy(self)
        made._arrays = _mapped(self._arrays, replace)
        return made

    def named_arrays(self) -> Mapping[str, NDArray[Any]] | None:
        """Returns the arrays if they are one dictionary, all their rows together; else `None`."""
        arrays = self._arrays
        if not isinstance(arrays, dict):
            return None
        named = cast("dict[str, Any]", arrays)
        return named if all(type(array) is np.ndarray for array in named.values()) else None

    def tuples(self, arrays: Sequence[NDArray[Any]]) -> Iterator[list[tuple[NDArray[Any], ...]]]:
        """Yields the batches of some of the arrays as tuples, in lists of a few at a time.

        Views are made a few ahead: code that runs several times in a row is quick, what runs between two steps of a
        training loop has to come back into the cache first. Batches that are copies are made one by one.
        """
        if self._shuffle_seed is not None:
            for rows in self._rows():
                yield [tuple([_take(array, rows) for array in arrays])]
            return
        size = self._batch_size
        starts = range(0, len(self) * size, size)
        for first in range(0, len(starts), AHEAD):
            some = starts[first : first + AHEAD]
            yield list(zip(*[[array[start : start + size] for start in some] for array in arrays]))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._num_rows} rows by {self._batch_size}, shuffle_seed={self._shuffle_seed}, "
            f"drop_remainder={self._drop_remainder})"
        )


def _mapped(arrays: Any, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Returns the same containers with what a function returns for each array."""
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


def _take(array: NDArray[Any], rows: "slice | NDArray[np.intp]") -> NDArray[Any]:
    batch = array[rows]
    if type(rows) is not slice:  # a view is as read-only as what it shows
        batch.flags.writeable = False
    return batch
