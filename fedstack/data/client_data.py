"""Prepares the data of simulated clients: batches of arrays, and sequences from generator functions."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from fedstack.computations.values.sequences import MAX_ROUND, MAX_SEED, Batches, Batching, FromGenerator
from fedstack.data.client_columns import check_named_once, columns_of_arrow, full_column
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.number_checks import checked_flag, checked_positive, checked_seed
from fedstack.foundations.value_text import is_data_frame, is_lazy, speaks_arrow

T = TypeVar("T")
Arrays: TypeAlias = object  # An array, or arbitrarily nested dicts, tuples, namedtuples and tables of arrays.


def from_generator(function: Callable[[], Iterable[T]]) -> FromGenerator[T]:
    """Returns a client's sequence that calls `function` for each new iteration.

    >>> list(from_generator(lambda: (x * x for x in range(3))))
    [0, 1, 4]

    Raises:
      TypeMismatchError: If `function` is not callable. Pass the generator function, not the generator it returns.
      InvalidValueError: During an iteration, if `function` returns the same iterator a second time.
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
      arrays: An array, or arbitrarily nested dicts, tuples and namedtuples of arrays. All arrays have the same number
        of rows, `dtype[rows, ...]`. Other values (a list, a column of a table) are converted to arrays once. A data
        frame of pandas or polars, or an Arrow table, is treated as a dict of its columns, each with its own dtype.
      batch_size: The number of rows per batch.
      shuffle_seed: The seed for shuffling rows. For each pass over the rows, the order is derived from this seed,
        `round` and the number of the pass, and a batch is a copy of its rows. Without a seed, the rows keep their
        order, and a batch is a view. Within a computation, passes are counted from 0 in each call of a function, so
        that results are reproducible. Outside of computations, each `for` loop increments the count.
      round: The number of the training round; 0 by default. Each round uses different orders. Requires
        `shuffle_seed`.
      reshuffle: Whether each pass uses a new order; True by default. Plain executor services, which receive only the
        elements, require `False`. Requires `shuffle_seed`.
      drop_remainder: Whether to drop the last batch if it has fewer than `batch_size` rows.

    Returns:
      A sequence of batches. Each batch has the containers of `arrays`, with read-only arrays `dtype[batch_size, ...]`.

    Raises:
      TypeMismatchError: If `arrays` contains a scalar or a masked array, or another argument has the wrong type.
      InvalidValueError: If the numbers of rows differ, a data frame has several columns with the same name, a column
        lacks a value in a row, an argument is out of range, or `round` or `reshuffle` is given without `shuffle_seed`.
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
    """Returns the `Batching` for these options; for the arguments, see `batches`."""
    size = checked_positive("batch_size", batch_size)
    orders = _orders(shuffle_seed, round, reshuffle)
    return Batching(size, checked_flag("drop_remainder", drop_remainder), *orders)


def frozen_arrays(arrays: Arrays, where: str) -> tuple[Any, int]:
    """Returns the same containers with read-only arrays, and the number of rows of the arrays.

    Args:
      arrays: See `batches`.
      where: The name of the function to which `arrays` was passed, for error messages.

    Raises:
      TypeMismatchError: If `arrays` contains a scalar or a masked array.
      InvalidValueError: If the numbers of rows differ, a table has several columns with the same name, or a column
        lacks a value in a row.
    """
    lengths: dict[str, int] = {}
    frozen = _freeze(arrays, "arrays", lengths)
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{path}: {length}" for path, length in lengths.items()) or "no arrays"
        raise InvalidValueError(
            f"Expected arrays with equal numbers of rows at {where}, found {found}; use one row per example"
        )
    return frozen, next(iter(lengths.values()))


def _freeze(arrays: Arrays, path: str, lengths: dict[str, int]) -> Any:
    """Returns the same containers with read-only views as leaves, and records the number of rows of each leaf.

    The numbers are stored in `lengths`, by path.
    """
    if isinstance(arrays, Mapping):
        items = [(key, _freeze(value, f"{path}[{key!r}]", lengths)) for key, value in cast("Any", arrays).items()]
        return OrderedDict(items) if isinstance(arrays, OrderedDict) else dict(items)
    if speaks_arrow(arrays) and (table := columns_of_arrow(arrays)) is not None:
        names, columns = table
        check_named_once(names, names, path)
        return _freeze(columns, path, lengths)
    if is_data_frame(arrays) and not speaks_arrow(arrays):
        # Each column becomes its own array. A single array would have one dtype for all columns, and no names.
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
            f"Expected an array with a row per example at {path}, found a one-shot iterator `{kind.__name__}`; "
            "pass a list or an array of its rows"
        )
    if is_lazy(arrays):
        raise TypeMismatchError(f"Expected a table at {path}, found a lazy `{kind.__name__}`; call collect() first")
    array = full_column(arrays, path)[...]
    if array.ndim == 0:
        raise TypeMismatchError(
            f"Expected an array with a row per example at {path}, found a scalar `{type(arrays).__name__}`; "
            "repeat the scalar for each example"
        )
    array.flags.writeable = False
    lengths[path] = len(array)
    return array


def _orders(seed: int | None, round: int | None, reshuffle: bool | None) -> tuple[int | None, int, bool]:
    """Returns the values for three fields of a `Batching`: the seed, the round and `reshuffles`."""
    for name, value in (("round", round), ("reshuffle", reshuffle)):
        if seed is None and value is not None:
            raise InvalidValueError(
                f"The option {name} requires shuffle_seed: {name}={value!r} has no effect without it, because rows are "
                f"shuffled only when a seed is given; pass shuffle_seed, or omit {name}"
            )
    if seed is None:
        return None, 0, False
    number = 0 if round is None else checked_seed("round", round, MAX_ROUND)
    return (
        checked_seed("shuffle_seed", seed, MAX_SEED),
        number,
        reshuffle is None or checked_flag("reshuffle", reshuffle),
    )
