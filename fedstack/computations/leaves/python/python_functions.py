"""Calls a Python function the way the language's decorators promise, once or once per client.

The function sees NumPy scalars and read-only arrays of exactly the declared dtypes, structs by attribute, by key
and by keyword, and sequences as re-iterables. What it returns is checked against the declared result type.
"""

import asyncio
import inspect
import itertools
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import NoReturn, cast, overload

from fedstack.computations.leaves.leaf_runtimes import Leaf
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.error_text import text_of
from fedstack.computations.types.language import RetryableError, SequenceType, StructType, Type
from fedstack.computations.types.traceback_filter import users_lines, without_calling_frames
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import Column, column_from_payloads
from fedstack.computations.values.containers import argument_maker
from fedstack.computations.values.federated_values import column_from_values
from fedstack.computations.values.snapshots import snapshot_of
from fedstack.computations.values.tensor_values import normalize_result
from fedstack.computations.values.values import in_lists, normalize, quick_reader
from fedstack.errors import FedstackError, LeafError, TypeMismatchError

Convert = Callable[[object], object]
_RESULT_ADVICE = "if the function is right, state another result_type=; left out, it is what a call on zeros gives"


class SequenceArgument:
    """A sequence as a leaf function sees it: it can be iterated over again and again, and not be changed."""

    __slots__ = ("_convert", "_source")

    def __init__(self, source: Iterable[object], convert: Convert | None) -> None:
        self._source = source
        self._convert = convert

    def __iter__(self) -> Iterator[object]:
        convert = self._convert
        if convert is None:
            return iter(self._source)
        lists = in_lists(self._source)
        if lists is None:
            return map(convert, self._source)
        return itertools.chain.from_iterable([convert(element) for element in some] for some in lists)

    def __len__(self) -> int:
        return len(cast("Sized", self._source))

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> "SequenceArgument": ...
    def __getitem__(self, index: int | slice) -> object:
        source = self._source
        if isinstance(index, slice):
            held = source if isinstance(source, Sequence) else list(itertools.islice(source, len(self)))
            return SequenceArgument(held[index], self._convert)
        if isinstance(source, Sequence):
            item = source[index]
        else:
            item = next(itertools.islice(source, range(len(self))[index], None))
        return item if self._convert is None else self._convert(item)

    def __repr__(self) -> str:
        return f"SequenceArgument({self._source!r})"


def argument_converter(type_spec: Type) -> Convert | None:
    """Returns the function from a payload to what a leaf function sees, or `None` where they are the same."""
    if isinstance(type_spec, SequenceType):
        element = argument_converter(type_spec.element)
        return lambda payload: SequenceArgument(cast("Iterable[object]", payload), element)
    if not isinstance(type_spec, StructType):
        return None
    make = argument_maker(type_spec)
    members = [argument_converter(t) for _, t in fields_of(type_spec)]
    if not any(members):
        return cast(Convert, make)

    def convert(payload: object) -> object:
        values = cast("tuple[object, ...]", payload)
        return make([v if c is None else c(v) for c, v in zip(members, values)])

    return convert


class PythonLeaf(Leaf):
    """A Python function with its declared types, ready to run."""

    def __init__(self, function: Callable[..., object], name: str, parameter: Type | None, result: Type) -> None:
        self.function = function
        self.name = name
        self.parameter = parameter
        self.result = result
        self._call_once = _bind(function, parameter)
        self._quick = quick_reader(result)
        self._snapshot = snapshot_of(result)

    def evaluate(self, argument: object) -> object:
        """Calls the function and returns what it returned, unchecked."""
        try:
            return self._call_once(argument)
        except BaseException as error:
            raise_leaf_error(error, self.name, None)

    def call(self, argument: object) -> object:
        payload = self._checked(self.evaluate(argument), "")
        return payload if self._snapshot is None else self._snapshot(payload, argument)

    def call_client(self, argument: object, client: int) -> object:
        try:
            value = self._call_once(argument)
        except BaseException as error:
            raise_leaf_error(error, self.name, client)
        payload = self._quick(value)
        if payload is None:
            payload = self._checked(value, f"[client {client}]")
        if self._snapshot is not None:
            del value  # whoever else has it now, has it for good
            payload = self._snapshot(payload, argument)
        return payload

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        arguments = [None] * size if argument is None else argument.items()
        if self._snapshot is not None:
            payloads = [self.call_client(item, client) for client, item in enumerate(arguments, first_client)]
            return column_from_payloads(payloads, self.result, list_is_own=True)
        values: list[object] = []
        try:
            # Not by extend() and map(), which take a StopIteration of the function's for the end.
            append, call = values.append, self._call_once
            for item in arguments:
                append(call(item))
        except BaseException as error:
            raise_leaf_error(error, self.name, first_client + len(values))
        try:
            return column_from_values(
                values,
                self.result,
                lambda i: f"the result of {self.name!r}[client {first_client + i}]",
                normalize_result,
            )
        except TypeMismatchError as error:
            raise with_place(error, _RESULT_ADVICE) from error.__cause__

    def _checked(self, value: object, at_client: str) -> object:
        """Returns the payload of what the function returned."""
        try:
            return normalize(value, self.result, f"the result of {self.name!r}{at_client}", normalize_result)
        except TypeMismatchError as error:
            raise with_place(error, _RESULT_ADVICE) from error.__cause__

    def __repr__(self) -> str:
        return f"<PythonLeaf {self.name}>"


def _bind(function: Callable[..., object], parameter: Type | None) -> Convert:
    """Returns a function of one payload that calls `function` with its arguments unpacked as its signature asks."""
    if parameter is None:
        return lambda _: function()
    if not unpacks(function, parameter):
        convert = argument_converter(parameter)
        return function if convert is None else _compose(function, convert)
    fields = fields_of(cast(StructType, parameter))
    converters = [argument_converter(t) for _, t in fields]
    if not calls_by_name(function, cast(StructType, parameter)):
        if not any(converters):
            return lambda payload: function(*cast("tuple[object, ...]", payload))
        return lambda payload: function(*_convert_all(converters, payload))
    keys = [cast(str, name) for name, _ in fields]
    return lambda payload: function(**dict(zip(keys, _convert_all(converters, payload))))


def _compose(function: Callable[..., object], convert: Convert) -> Convert:
    return lambda payload: function(convert(payload))


def _convert_all(converters: Sequence[Convert | None], payload: object) -> list[object]:
    values = cast("tuple[object, ...]", payload)
    return [value if convert is None else convert(value) for convert, value in zip(converters, values)]


def unpacks(function: Callable[..., object], parameter: Type) -> bool:
    """Tells whether a struct parameter is spread over the function's parameters.

    A function of one parameter gets the struct as it is; one of several, those with a default counted, gets the
    members, by name where the type has names.
    """
    return isinstance(parameter, StructType) and len(inspect.signature(function).parameters) > 1


def calls_by_name(function: Callable[..., object], struct: StructType) -> bool:
    """Tells whether the members of a struct that is spread are given by name: where it has names, unless in order."""
    names = [name for name, _ in fields_of(struct)]
    return None not in names and names != _positional_names(function)


def _positional_names(function: Callable[..., object]) -> list[str] | None:
    """Returns the names of a function's parameters if all of them can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return [p.name for p in parameters] if positional else None


def _interrupts(error: BaseException) -> bool:
    """Tells whether an exception came over a function, and not out of it: Ctrl-C, or from the handler of a signal.

    A cancellation that comes out of a function is its own (of a loop inside it): that of a caller never goes in.
    """
    if isinstance(error, asyncio.CancelledError):
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(inspect.unwrap(handler), "__code__", None) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def raise_leaf_error(error: BaseException, name: str, client_index: int | None) -> NoReturn:
    """Wraps what a user's function raised, with the lines of its traceback that are the user's own."""
    if isinstance(error, RetryableError):
        raise error  # who asks for another attempt gets one
    if isinstance(error, FedstackError):
        # A computation called inside the function already says what went wrong, and where in its own run.
        if client_index is None:
            raise error
        placed = with_place(error, f"in the computation {name!r} at client {client_index}")
        if isinstance(placed, LeafError):
            placed.client_index = client_index  # the caller knows the clients of the outer computation
        raise placed from error.__cause__
    if not current_scope().is_for_others and _interrupts(error):
        raise error  # the caller's process is the one that is meant
    error.__traceback__ = without_calling_frames(error.__traceback__)
    where = "" if client_index is None else f"; at client {client_index}"
    advice = ""
    text = text_of(error)
    if isinstance(error, ValueError) and "read-only" in text:
        advice = "; arguments are read-only because they are shared: change a copy, x = x.copy()"
    elif isinstance(error, RuntimeError) and "running event loop" in text:
        advice = "; in a notebook leaves run where a loop runs already: use an async context, or a thread of your own"
    shown = type(error).__name__ + (f": {text}" if text else "")
    raise LeafError(
        f"Expected the computation {name!r} to return, found that it raised {shown}{where}{advice}{users_lines(error)}",
        computation_name=name,
        client_index=client_index,
    ) from error
