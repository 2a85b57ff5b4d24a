"""Helps users to lay out the data of simulated clients.

A client's sequence may be any *re-iterable* object: one that starts again from the front whenever it is iterated. An
iterator does not, it is empty the second time, and an empty second epoch is a wrong result without an error; so
iterators are refused by name, here and wherever a sequence enters a computation.
"""

import copy
import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_columns import check_named_once, column_array, is_data_frame
from fedstack.errors import InvalidValueError, TypeMismatchError

T = TypeVar("T")
_BOOLS = (bool, np.bool_)
# How many elements are made ready at a time where that takes no memory.
AHEAD = 16
Arrays: TypeAlias = object  # An array, or dicts, tuples, namedtuples and data frames of them, nested at will.


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
    """A client's sequence of slices along the first dimension of arrays; made by `batches`."""

    def __init__(
        self, arrays: Arrays, batch_size: int, *, shuffle_seed: int | None = None, drop_remainder: bool = False
    ) -> None:
        self._batch_size = _positive("batch_size", batch_size)
        self._shuffle_seed = None if shuffle_seed is None else _seed("shuffle_seed", shuffle_seed)
        self._drop_remainder = drop_remainder
        lengths: dict[str, int] = {}
        self._arrays = _freeze(arrays, "arrays", lengths)
        if len(set(lengths.values())) != 1:
            found = ", ".join(f"{path}: {length}" for path, length in lengths.items()) or "no arrays"
            raise InvalidValueError(
                f"Expected arrays of one leading dimension, found {found}; at batches; use one row per example"
            )
        self._num_rows = next(iter(lengths.values()))

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


def from_iterable(elements: Iterable[T]) -> Iterable[T]:
    """Returns `elements` itself as a client's sequence, after a check that it can be iterated again and again.

    Raises:
      TypeMismatchError: If it can be iterated only once, or not at all, or is text, bytes or a mapping.
    """
    check_re_iterable(elements)
    return elements


def from_generator(function: Callable[[], Iterable[T]]) -> FromGenerator[T]:
    """Returns a client's sequence that calls `function` anew for each iteration.

    >>> list(from_generator(lambda: (x * x for x in range(3))))
    [0, 1, 4]

    Raises:
      TypeMismatchError: If `function` is not callable (a generator is not, the function that makes it is).
      InvalidValueError: At an iteration, if `function` returns the same iterator a second time.
    """
    return FromGenerator(function)


def batches(
    arrays: Arrays, batch_size: int, *, shuffle_seed: int | None = None, drop_remainder: bool = False
) -> Batches:
    """Returns a client's sequence of batches: slices of `arrays` along their first dimension.

    >>> [batch["x"].tolist() for batch in batches({"x": [1, 2, 3]}, 2)]
    [[1, 2], [3]]

    Args:
      arrays: An array, or dicts, tuples and namedtuples of them, nested at will. All have the same number of rows,
        `dtype[rows, ...]`. What is not yet an array (a list, a column of a table) is made one, once. An object like a
        pandas `DataFrame` counts as the dict of its columns, each with a dtype of its own.
      batch_size: The number of rows of a batch.
      shuffle_seed: If given, rows come in an order drawn from this seed, the same in each iteration; a batch is then a
        copy of its rows. If left out, rows come in order and a batch is a view.
      drop_remainder: Whether a last batch of fewer rows is left out.

    Returns:
      A sequence of batches in the containers of `arrays`, whose arrays are `dtype[batch_size, ...]` and read-only.

    Raises:
      TypeMismatchError: If there is a scalar or a masked array among the arrays, or an argument is not an integer.
      InvalidValueError: If the numbers of rows differ, a data frame has several columns of one name, a nullable column
        has no value in a row, or an argument is out of range.
    """
    return Batches(arrays, batch_size, shuffle_seed=shuffle_seed, drop_remainder=drop_remainder)


def client_seeds(seed: int, n: int) -> list[int]:
    """Returns a seed for each of `n` clients, independent of each other and reproducible.

    The seed of client k depends on `seed` and k alone, so that more clients do not change those of the first ones.
    They are the first 64-bit words of NumPy's spawned `SeedSequence`s.

    Args:
      seed: A non-negative integer of any size.
      n: The number of clients.

    Returns:
      Integers in [0, 2**64), which fit `np.uint64`.

    Raises:
      TypeMismatchError: If an argument is not an integer.
      InvalidValueError: If an argument is negative.
    """
    entropy, count = _seed("seed", seed), _seed("n", n)
    return [int(np.random.SeedSequence(entropy, spawn_key=(k,)).generate_state(1, np.uint64)[0]) for k in range(count)]


def _freeze(arrays: Arrays, path: str, lengths: dict[str, int]) -> Any:
    """Returns the same containers with read-only views at the leaves, and notes each leaf's number of rows."""
    if isinstance(arrays, Mapping):
        items = [(key, _freeze(value, f"{path}[{key!r}]", lengths)) for key, value in cast("Any", arrays).items()]
        return OrderedDict(items) if isinstance(arrays, OrderedDict) else dict(items)
    if is_data_frame(arrays):
        # Column by column: one array of them all would have one dtype for all, and no names.
        names = list(arrays.columns)
        check_named_once(names, names, path)
        return {name: _freeze(arrays[name], f"{path}[{name!r}]", lengths) for name in names}
    if isinstance(arrays, tuple):
        parts = cast("tuple[Any, ...]", arrays)
        frozen = [_freeze(part, f"{path}[{k}]", lengths) for k, part in enumerate(parts)]
        make = getattr(parts, "_make", None)
        return tuple(frozen) if make is None else make(frozen)
    array = column_array(arrays, path)[...]
    if array.ndim == 0:
        raise TypeMismatchError(
            f"Expected an array with a row per example, found the scalar `{type(arrays).__name__}`; at {path}; "
            "repeat it for each example"
        )
    array.flags.writeable = False
    lengths[path] = len(array)
    return array


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


def _seed(name: str, value: object) -> int:
    number = _integer(name, value)
    if number < 0:
        raise InvalidValueError(f"Expected {name} to be zero or more, found {number}; give a non-negative integer")
    return number


def _positive(name: str, value: object) -> int:
    number = _integer(name, value)
    if number < 1:
        raise InvalidValueError(f"Expected {name} to be one or more, found {number}; give a positive integer")
    return number


def _integer(name: str, value: object) -> int:
    found = type(value).__name__
    try:
        if not isinstance(value, _BOOLS):
            return operator.index(cast("Any", value))
    except TypeError:
        pass
    raise TypeMismatchError(f"Expected {name} to be an integer, found `{found}`; give an integer")
