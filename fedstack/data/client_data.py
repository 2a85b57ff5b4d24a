"""Prepares the data of simulated clients: batches of arrays, sequences from a function, seeds."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from fedstack.computations.values.sequences import MAX_ROUND, MAX_SEED, Batches, Batching, FromGenerator
from fedstack.data.client_columns import check_named_once, columns_of_arrow, full_column
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.number_checks import checked_flag, checked_positive, checked_seed
from fedstack.foundations.value_text import is_data_frame, is_lazy, speaks_arrow

T = TypeVar("T")
Arrays: TypeAlias = object  # An array, or dicts, tuples, namedtuples and tables of them, nested at will.


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
    arrays: Arrays,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    round: int | None = None,
    reshuffle: bool | None = None,
    drop_remainder: bool = False,
) -> Batches:
    """Returns a client's sequence of batches: slices of `arrays` along their first dimension.

    >>> [batch["x"].tolist() for batch in batches({"x": [1, 2, 3]}, 2)]
    [[1, 2], [3]]

    Args:
      arrays: An array, or dicts, tuples and namedtuples of them, nested at will. All have the same number of rows,
        `dtype[rows, ...]`. Other values (a list, a column of a table) are converted to arrays once. A data frame of
        pandas or polars and an Arrow table count as the dict of their columns, each with a dtype of its own.
      batch_size: The number of rows of a batch.
      shuffle_seed: If given, the order of the rows is drawn from this seed, `round` and the number of the pass, a new
        one for each iteration; a batch is then a copy of its rows. If left out, rows come in order and a batch is a
        view. A function of a computation counts passes from 0 in each call, so that results stay reproducible; outside
        of computations each `for` increases the count.
      round: The round of training, so that each has orders of its own; 0 by default. With `shuffle_seed` only.
      reshuffle: Whether each pass has a new order, the default. Plain executor services, which get only the elements,
        need `False`. With `shuffle_seed` only.
      drop_remainder: Whether a last batch of fewer rows is left out.

    Returns:
      A sequence of batches in the containers of `arrays`, whose arrays are `dtype[batch_size, ...]` and read-only.

    Raises:
      TypeMismatchError: If there is a scalar or a masked array among the arrays, or an argument is not an integer.
      InvalidValueError: If the numbers of rows differ, a data frame has several columns of one name, a column
        has no value in a row, an argument is out of range, or there is no `shuffle_seed` for `round` or `reshuffle`.
    """
    batching = batching_of(
        batch_size, shuffle_seed=shuffle_seed, round=round, reshuffle=reshuffle, drop_remainder=drop_remainder
    )
    frozen, rows = frozen_arrays(arrays, "batches")
    return Batches(frozen, rows, batching)


def batching_of(
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    round: int | None = None,
    reshuffle: bool | None = None,
    drop_remainder: bool = False,
) -> Batching:
    """Returns how rows form batches; the arguments are those of `batches`."""
    size = checked_positive("batch_size", batch_size)
    orders = _orders(shuffle_seed, round, reshuffle)
    return Batching(size, checked_flag("drop_remainder", drop_remainder), *orders)


def frozen_arrays(arrays: Arrays, where: str) -> tuple[Any, int]:
    """Returns the same containers with read-only arrays, and the number of their rows.

    Args:
      arrays: See `batches`.
      where: The function that they were passed to, for error messages.

    Raises:
      TypeMismatchError: If there is a scalar or a masked array among them.
      InvalidValueError: If the numbers of rows differ, or a data frame cannot be taken column by column.
    """
    lengths: dict[str, int] = {}
    frozen = _freeze(arrays, "arrays", lengths)
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{path}: {length}" for path, length in lengths.items()) or "no arrays"
        raise InvalidValueError(
            f"Expected arrays of one leading dimension, found {found}; at {where}; use one row per example"
        )
    return frozen, next(iter(lengths.values()))


def client_seeds(seed: int, n: int) -> list[int]:
    """Returns a seed for each of `n` clients, independent of each other and reproducible.

    The seed of client k depends only on `seed` and k, so that more clients do not change the seeds of the first ones.
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
    entropy, count = checked_seed("seed", seed), checked_seed("n", n)
    return [int(np.random.SeedSequence(entropy, spawn_key=(k,)).generate_state(1, np.uint64)[0]) for k in range(count)]


def _freeze(arrays: Arrays, path: str, lengths: dict[str, int]) -> Any:
    """Returns the same containers with read-only views as leaves, and records each leaf's number of rows."""
    if isinstance(arrays, Mapping):
        items = [(key, _freeze(value, f"{path}[{key!r}]", lengths)) for key, value in cast("Any", arrays).items()]
        return OrderedDict(items) if isinstance(arrays, OrderedDict) else dict(items)
    if speaks_arrow(arrays) and (table := columns_of_arrow(arrays)) is not None:
        names, columns = table
        check_named_once(names, names, path)
        return _freeze(columns, path, lengths)
    if is_data_frame(arrays) and not speaks_arrow(arrays):
        # Column by column: one array of them all would have one dtype for all, and no names.
        names = list(arrays.columns)
        check_named_once(names, names, path)
        return {name: _freeze(arrays[name], f"{path}[{name!r}]", lengths) for name in names}
    if isinstance(arrays, tuple):
        parts = cast("tuple[Any, ...]", arrays)
        frozen = [_freeze(part, f"{path}[{k}]", lengths) for k, part in enumerate(parts)]
        make = getattr(parts, "_make", None)
        return tuple(frozen) if make is None else make(frozen)
    kind = type(arrays)
    if issubclass(kind, Iterator):
        raise TypeMismatchError(
            f"Expected an array with a row per example, found the one-shot iterator `{kind.__name__}`; at {path}; "
            "give a list or an array of its rows"
        )
    if is_lazy(arrays):
        raise TypeMismatchError(f"Expected a table, found `{kind.__name__}`; at {path}; collect() it first")
    array = full_column(arrays, path)[...]
    if array.ndim == 0:
        raise TypeMismatchError(
            f"Expected an array with a row per example, found the scalar `{type(arrays).__name__}`; at {path}; "
            "repeat it for each example"
        )
    array.flags.writeable = False
    lengths[path] = len(array)
    return array


def _orders(seed: int | None, round: int | None, reshuffle: bool | None) -> tuple[int | None, int, bool]:
    """Returns the seed, the round and whether each pass has a new order, as a `Batching` has them."""
    for name, value in (("round", round), ("reshuffle", reshuffle)):
        if seed is None and value is not None:
            raise InvalidValueError(
                f"Expected {name} beside a shuffle_seed, found {name}={value!r} without one; rows come in order then: "
                f"give a shuffle_seed, or leave {name} out"
            )
    if seed is None:
        return None, 0, False
    number = 0 if round is None else checked_seed("round", round, MAX_ROUND)
    return (
        checked_seed("shuffle_seed", seed, MAX_SEED),
        number,
        reshuffle is None or checked_flag("reshuffle", reshuffle),
    )
