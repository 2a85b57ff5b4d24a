"""Defines an executor that records the calls of its verbs and passes them on to another executor."""

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs

from fedstack.computations.types.language import Executor, ExecutorValue, Struct, Type, struct_elements
from fedstack.errors import ForeignValueError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.value_text import describe


@attrs.frozen
class ValueCreated:
    """`create_value` returned value number `index`."""

    index: int
    value: object
    type: Type


@attrs.frozen
class CallCreated:
    """`create_call` returned value number `index`; `function` and `argument` are the numbers of its operands."""

    index: int
    function: int
    argument: int | None
    type: Type


@attrs.frozen
class StructCreated:
    """`create_struct` returned value number `index`; `elements` are the names and numbers of its members."""

    index: int
    elements: tuple[tuple[str | None, int], ...]
    type: Type


@attrs.frozen
class SelectionCreated:
    """`create_selection` returned value number `index`, the member of `source` at `position`."""

    index: int
    source: int
    position: int
    type: Type


@attrs.frozen
class Computed:
    """`compute()` of value number `index` returned `result`."""

    index: int
    result: object


@attrs.frozen
class Raised:
    """A verb or `compute()` raised `error`."""

    verb: str
    error: Exception


@attrs.frozen
class Closed:
    """`close()` was called."""


TraceEvent: TypeAlias = ValueCreated | CallCreated | StructCreated | SelectionCreated | Computed | Raised | Closed


def check_executor_below(target: object) -> None:
    """Checks that a wrapper's target is an executor.

    Raises:
      InvalidValueError: If `target` is not an executor.
    """
    if not isinstance(target, Executor):
        raise InvalidValueError(
            f"Expected an executor to wrap, found {describe(target)}; pass a LeafExecutor(), for example"
        )


class TracedValue(ExecutorValue):
    """A value of a tracing executor, identified by its number."""

    def __init__(self, executor: "TracingExecutor", index: int, target: ExecutorValue) -> None:
        self.executor = executor
        self.index = index
        self.target = target

    @property
    def type_signature(self) -> Type:
        return self.target.type_signature

    @property
    def reference(self) -> object:
        return self.target.reference

    async def compute(self) -> object:
        return await self.executor.computed(self)

    def __repr__(self) -> str:
        return f"<TracedValue {self.index} of type {self.type_signature}>"


class TracingExecutor(ClosesOnExit, Executor):
    """An executor that passes every verb on to its target, and records it when it returns.

    Args:
      target: Any executor. It is closed together with this executor.

    Attributes:
      events: The recorded events, in the order in which the verbs returned. Values are numbered from 0 in the order of
        their creation.
    """

    def __init__(self, target: Executor) -> None:
        check_executor_below(target)
        self.target = target
        self.events: list[TraceEvent] = []
        self._count = 0
        self._lock = threading.Lock()

    async def create_value(self, value: Any, type_spec: Any = None) -> TracedValue:
        with self._recorded("create_value"):
            made = await self.target.create_value(value, type_spec)
        return self._created(made, lambda index: ValueCreated(index, value, made.type_signature))

    async def create_call(self, comp: ExecutorValue, arg: ExecutorValue | None = None) -> TracedValue:
        with self._recorded("create_call"):
            function = self._own(comp, "the function")
            argument = None if arg is None else self._own(arg, "the argument")
            made = await self.target.create_call(function.target, None if argument is None else argument.target)
        number = None if argument is None else argument.index
        return self._created(made, lambda index: CallCreated(index, function.index, number, made.type_signature))

    async def create_struct(self, elements: Any) -> TracedValue:
        with self._recorded("create_struct"):
            pairs = [(name, self._own(value, "an element")) for name, value in _pairs_of(elements)]
            made = await self.target.create_struct(Struct([(name, value.target) for name, value in pairs]))
        numbers = tuple((name, value.index) for name, value in pairs)
        return self._created(made, lambda index: StructCreated(index, numbers, made.type_signature))

    async def create_selection(self, source: ExecutorValue, index: int) -> TracedValue:
        with self._recorded("create_selection"):
            struct = self._own(source, "the source")
            made = await self.target.create_selection(struct.target, index)
        return self._created(made, lambda number: SelectionCreated(number, struct.index, index, made.type_signature))

    async def computed(self, value: TracedValue) -> object:
        """Computes a value on the target executor, and records the result."""
        with self._recorded("compute"):
            result = await value.target.compute()
        self._record(Computed(value.index, result))
        return result

    def close(self) -> None:
        self._closed = True
        self._record(Closed())
        self.target.close()

    def _created(self, made: ExecutorValue, event: Callable[[int], TraceEvent]) -> TracedValue:
        with self._lock:
            index = self._count
            self._count += 1
            self.events.append(event(index))
        return TracedValue(self, index, made)

    def _record(self, event: TraceEvent) -> None:
        with self._lock:
            self.events.append(event)

    @contextlib.contextmanager
    def _recorded(self, verb: str) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            self._record(Raised(verb, error))
            raise

    def _own(self, value: object, role: str) -> TracedValue:
        if isinstance(value, TracedValue) and value.executor is self:
            return value
        found = (
            f"one of {value.executor!r}" if isinstance(value, TracedValue) else f"{describe(value)}; use create_value"
        )
        raise ForeignValueError(f"Expected a value of {self!r} as {role}, found {found}")

    def __repr__(self) -> str:
        return f"<TracingExecutor over {self.target!r}>"


def _pairs_of(elements: object) -> list[tuple[str | None, object]]:
    """Returns the names and elements of a container. All executors accept a `Struct` of these pairs."""
    if isinstance(elements, Struct):
        return struct_elements(elements)
    if isinstance(elements, Mapping):
        return list(cast("Mapping[str | None, object]", elements).items())
    as_dictionary = getattr(elements, "_asdict", None)
    if as_dictionary is not None:
        return list(as_dictionary().items())
    kind = type(elements)
    if attrs.has(kind):
        return [(field.name, getattr(elements, field.name)) for field in attrs.fields(kind)]
    return [(None, element) for element in cast("Sequence[object]", elements)]
