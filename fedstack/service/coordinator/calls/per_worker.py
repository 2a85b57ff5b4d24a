"""Defines values of which each worker has its own, such as iterators over data."""

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

import numpy as np

from fedstack.computations.leaves.python.function_pickles import dumps
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.calls.boxes import BOX
from fedstack.service.coordinator.calls.calls import Lasting


def _iterator_over(make: Callable[[], Iterable[object]]) -> Iterator[object]:
    """Begins an iteration in a worker."""
    return iter(make())


def _itself(value: Any) -> Any:
    return value


class ArgumentOnly:
    """What stands for something at workers. Functions get that as an argument; they find nothing in this itself."""

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidValueError(
            f"Expected nothing of this process in what is sent to a worker, found {self!r}; give it as an argument"
        )


class PerWorkerValues(ArgumentOnly):
    """A value of which each worker has its own: made there when it is first used, and anew when a worker was lost.

    It ends there some time after nothing refers to this any more.

    Give it as an argument of Python functions; one closure at a time uses it.
    """

    def __init__(self, make: Callable[[], object], what: str) -> None:
        self.key = uuid.uuid4().hex
        self._what = what
        try:
            content = dumps(make)
        except Exception as error:  # what it refers to may refuse in any way
            raise CarrierError(f"Pickling {what} raised {type(error).__name__}: {error}") from error
        self.maker = Lasting(np.frombuffer(content, np.uint8), BOX)

    def __next__(self) -> NoReturn:
        raise NotImplementedError(
            f"Expected to be used in a scheduled function, found a call of next() on {self!r}; give it as an argument"
        )

    def __repr__(self) -> str:
        return f"<PerWorkerValues of {self._what}>"


class PerWorkerDataset(ArgumentOnly):
    """A dataset of which each worker has its own; `iter` gives an iterator for each of them."""

    def __init__(self, make: Callable[[], Iterable[object]], what: str) -> None:
        self._make = make
        self._what = what

    @functools.cached_property
    def datasets(self) -> PerWorkerValues:
        """The dataset of each worker, for functions that get it without `iter`."""
        return PerWorkerValues(self._make, self._what)

    def __iter__(self) -> PerWorkerValues:  # type: ignore[override]
        return PerWorkerValues(functools.partial(_iterator_over, self._make), f"iterators over {self._what}")

    def __repr__(self) -> str:
        return f"<PerWorkerDataset of {self._what}>"


def per_worker_value(source: object) -> PerWorkerValues:
    """Returns a value that each worker makes by calling a function, or a copy of a value."""
    return PerWorkerValues(source if callable(source) else functools.partial(_itself, source), describe(source))


def per_worker_dataset(source: Iterable[object] | Callable[[], Iterable[object]]) -> PerWorkerDataset:
    """Returns a dataset that each worker makes by calling a function, or a copy of one.

    Raises:
      InvalidValueError: If it can be iterated over once only, or not at all.
    """
    if callable(source):
        return PerWorkerDataset(source, describe(source))
    if isinstance(source, Iterator) or not isinstance(cast(object, source), Iterable):
        raise InvalidValueError(
            f"Expected a dataset that can be iterated over again and again, or a function that returns one, found "
            f"{describe(cast(object, source))}"
        )
    return PerWorkerDataset(functools.partial(_itself, source), describe(source))
