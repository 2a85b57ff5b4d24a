"""Defines the base class of leaf computations, which does for every runtime what does not depend on the framework.

| promise | how |
| --- | --- |
| the result has exactly the declared dtypes, shapes and structure | `normalize_argument`; the error has path and name |
| a buffer that the function may fill again is copied | `snapshot_of`, only if something else references it |
| an error of the function says which computation and which client | `raise_leaf_error` |
| its traceback has the user's frames only | `raise_leaf_error` |
| an error has the index of the client in columns, too | parameters of `call` and `call_column` |
| arguments cannot be changed | payloads are read-only; sequences are `SequenceArgument`s |
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from traceback import walk_tb
from typing import NoReturn, cast, overload

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall
from fedstack.computations.leaves.work_scope import WorkKind, WorkScope, current_scope
from fedstack.computations.types.language import RetryableError, SequenceType, StructType, Type
from fedstack.computations.types.language_mistakes import advice_on
from fedstack.computations.types.type_structure import fields_of, is_nothing
from fedstack.computations.values.column_sequence import ColumnSequence, ShownSequence, column_of
from fedstack.computations.values.columns import Column
from fedstack.computations.values.containers import Maker
from fedstack.computations.values.federated_values import column_from_values, normalize_argument
from fedstack.computations.values.ownership import snapshot_of
from fedstack.computations.values.sequences import in_pass
from fedstack.computations.values.values import SequenceView, in_lists, quick_reader
from fedstack.errors import ClosureCancelledError, FedstackError, LeafError, TypeMismatchError
from fedstack.foundations.error_text import text_of, with_place
from fedstack.foundations.traceback_filter import interrupts, users_lines, without_calling_frames

Convert = Callable[[object], object]


class SequenceArgument(ShownSequence):
    """A sequence as a leaf function sees it: re-iterable and immutable.

    Each call of a function for a client has its own, which counts the passes: so neither retries nor other functions
    with the same sequence change the order of its elements.
    """

    __slots__ = ("_convert", "_passes")
    payload: Iterable[object]

    def __init__(self, payload: Iterable[object], element: Type, convert: Convert | None) -> None:
        super().__init__(payload, element)
        self._convert = convert
        self._passes = 0

    def __iter__(self) -> Iterator[object]:
        number = self._passes
        self._passes += 1
        return self.in_pass(number) if type(self.payload) is ColumnSequence else self._later(number)

    def _later(self, number: int) -> Iterator[object]:
        """Begins when the first element is requested: `list` asks for the length after it has got the iterator."""
        yield from self.in_pass(number)

    def in_pass(self, number: int) -> Iterator[object]:
        convert = self._convert
        if convert is None:
            return in_pass(self.payload, number)
        lists = in_lists(self.payload, number)
        if lists is None:
            return map(convert, in_pass(self.payload, number))
        return itertools.chain.from_iterable([convert(element) for element in some] for some in lists)

    def __len__(self) -> int:
        try:
            return len(cast("Sized", self.payload))
        except TypeError:  # A stream: its elements are made once and kept, as those that a worker receives are.
            held = column_of(self.payload, self.element)
            self.payload = held
            return len(held)

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> "SequenceArgument": ...
    def __getitem__(self, index: int | slice) -> object:
        size, source = len(self), self.payload
        if isinstance(index, slice):
            held = source if isinstance(source, Sequence) else list(itertools.islice(source, size))
            return SequenceArgument(held[index], self.element, self._convert)
        if isinstance(source, Sequence):
            item = source[index]
        else:
            item = next(itertools.islice(source, range(size)[index], None))
        return item if self._convert is None else self._convert(item)

    def __repr__(self) -> str:
        return f"SequenceArgument({self.payload!r})"


def argument_converter(type_spec: Type, maker_of: Callable[[StructType], Maker] | None = None) -> Convert | None:
    """Returns the function from a payload to the value that a leaf function sees; `None` if they are the same.

    Args:
      type_spec: The type of the payload.
      maker_of: Returns the function that builds the container of a struct; by default structs are tuples.
    """
    if isinstance(type_spec, SequenceType):
        element, shown = type_spec.element, argument_converter(type_spec.element, maker_of)
        return lambda payload: SequenceArgument(cast("Iterable[object]", payload), element, shown)
    if not isinstance(type_spec, StructType):
        return None
    make = None if maker_of is None else maker_of(type_spec)
    members = [argument_converter(t, maker_of) for _, t in fields_of(type_spec)]
    if not any(members):
        return cast("Convert | None", make)
    build = cast(Maker, make or tuple)

    def convert(payload: object) -> object:
        return build(converted(members, payload))

    return convert


def converted(converters: Sequence[Convert | None], payload: object) -> list[object]:
    """Returns the members of the payload of a struct as a leaf function sees them."""
    values = cast("tuple[object, ...]", payload)
    return [value if convert is None else convert(value) for convert, value in zip(converters, values)]


# What follows the name of a function in the place of a misfit: the client, and the path inside the result.
_INSIDE = re.compile(r"(?:\[client (\d+)\])?([^;\n]*)")


class Leaf(BoundOperation):
    """A leaf computation that is ready to run. A runtime derives its own class and defines `evaluate`.

    A leaf lives as long as it is referenced, by a cache of loaded leaves or a plan. Resources outside of Python, such
    as an executable or memory of a device, are freed by `weakref.finalize(leaf, ...)`.

    Args:
      name: Its name in messages.
      parameter: The type of its argument; `None` if it has no parameter.
      result: The type of its result.
    """

    # The advice for a result that does not fit its type.
    result_advice = "if the function is right, declare another result type"

    def __init__(self, name: str, parameter: Type | None, result: Type) -> None:
        self.name = name
        self.parameter = parameter
        self.result = result
        self._convert = None if parameter is None else argument_converter(parameter)
        self._place = f"the result of {name!r}"
        self._quick = quick_reader(result)
        self._snapshot = snapshot_of(result)
        self._returns_nothing = is_nothing(result)

    def evaluate(self, argument: object, /) -> object:
        """Runs the function once, on any thread.

        Args:
          argument: A value of the parameter type: NumPy scalars and read-only arrays of exactly the declared dtypes,
            `bytes` for strings, tuples for structs, in the type's order, and re-iterables for sequences. `None` if the
            function has no parameter.

        Returns:
          A value that fits the result type, as `fedstack.python_computation` takes it from functions.

        Raises:
          Exception: Whatever the function raises; the caller gets a `LeafError`, or a `FedstackError` as it is.
        """
        raise NotImplementedError

    def call(self, argument: object, client: int | None = None) -> object:
        try:
            value = self.evaluate(argument if self._convert is None else self._convert(argument))
        except BaseException as error:
            raise_leaf_error(error, self.name, client)
        payload = self._quick(value)
        if payload is None:
            payload = self._checked(value, client)
        if self._snapshot is not None:
            del value  # so that only references of others are left
            payload = self._snapshot(payload, argument)
        return payload

    def _checked(self, value: object, client: int | None) -> object:
        place = self._place + ("" if client is None else f"[client {client}]")
        if value is None and self._returns_nothing:
            return ()
        try:
            return normalize_argument(value, self.result, place)
        except FedstackError as error:
            raise self._misfit(error) from error.__cause__

    def _misfit(self, error: FedstackError) -> FedstackError:
        """Returns the error for a result that does not fit, with the path in the result first in its place.

        The caller of a server's method is not at fault, so for methods it is a `LeafError`, as if the function raised.
        """
        misfit = self._placed(error)
        if current_scope().kind is not WorkKind.METHOD:
            return misfit
        text = f"{self.name!r} returned what does not fit its type: {misfit}"
        return LeafError(text, computation_name=self.name, client_index=misfit.client_index)

    def _placed(self, error: FedstackError) -> FedstackError:
        before, found, rest = str(error).rpartition(f"; at {self._place}")
        inside = _INSIDE.match(rest)
        placed = with_place(error, self.result_advice) if isinstance(error, TypeMismatchError) else error
        placed.computation_name = self.name
        if not found or inside is None:
            return placed
        client, path = inside[1], inside[2]
        where = f"result{path} of {self.name!r}" if path else self._place
        if client is not None:
            placed.client_index = int(client)
            where += f" at client {client}"
        text = str(placed).replace(f"{before}; at {self._place}{inside[0]}", f"{before}; at {where}", 1)
        placed.args = (text, *placed.args[1:])
        return placed

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        if self._snapshot is not None:
            return super().call_column(argument, first_client, size)
        # Scalars: they cost little besides the call, so they are checked all at once.
        arguments = [None] * size if argument is None else argument.items()
        values: list[object] = []
        try:
            # Not by extend() and map(), which would end at a StopIteration that the function raises.
            append, evaluate = values.append, self.evaluate
            with ColumnCall(first_client, values):
                for item in arguments if self._convert is None else map(self._convert, arguments):
                    append(evaluate(item))
            if self._returns_nothing:
                values = [() if value is None else value for value in values]
        except BaseException as error:
            raise_leaf_error(error, self.name, first_client + len(values))
        try:
            return column_from_values(values, self.result, lambda i: f"{self._place}[client {first_client + i}]")
        except FedstackError as error:
            raise self._misfit(error) from error.__cause__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


# Python's messages where text is mixed with bytes, or bytes are used as text.
_TEXT_AND_BYTES = re.compile(r"\bstr(ing)?\b.*\bbytes\b|\bbytes\b.*\bstr(ing)?\b|^'bytes' object has no attribute")


def _is_of_argument(error: FedstackError | RetryableError) -> bool:
    """Returns whether an error was raised while a function iterated over its argument.

    Errors of computations that the function called do not have the frames in which they were raised.
    """
    return any(frame.f_code is SequenceView.in_pass.__code__ for frame, _ in walk_tb(error.__traceback__))


def _is_of_elsewhere(error: FedstackError | RetryableError, scope: WorkScope) -> bool:
    """Returns whether an error is about a call that the function made, rather than about the call that runs it.

    A closure that reports a cancelled or unreachable call does not mean itself, nor the worker that runs it. The caller
    of a method does not know what that calls: a deadline or a mismatch in there is neither its fault nor the server's.
    """
    if scope.kind is WorkKind.CLOSURE:
        return isinstance(error, (ClosureCancelledError, RetryableError))
    return scope.kind is WorkKind.METHOD and not isinstance(error, LeafError) and not _is_of_argument(error)


def raise_leaf_error(error: BaseException, name: str, client_index: int | None) -> NoReturn:
    """Wraps an error of a user's function in a LeafError, with the user's lines of its traceback."""
    scope = current_scope()
    is_of_elsewhere = isinstance(error, (FedstackError, RetryableError)) and _is_of_elsewhere(error, scope)
    if isinstance(error, RetryableError) and not is_of_elsewhere:
        raise error  # a request for another attempt
    if isinstance(error, FedstackError) and not is_of_elsewhere:
        # The error of a computation that the function called is complete. That of an element of the argument has its
        # place, as if it had been checked before it was sent to a worker.
        if client_index is None or _is_of_argument(error):
            raise error
        placed = with_place(error, f"in the computation {name!r} at client {client_index}")
        placed.computation_name = error.computation_name or name
        placed.client_index = client_index  # the caller knows the clients of the outer computation
        raise placed from error.__cause__
    if not scope.is_contained and interrupts(error):
        raise error  # it is meant for the caller's process
    error.__traceback__ = without_calling_frames(error.__traceback__)
    where = "" if client_index is None else f"; at client {client_index}"
    advice = ""
    text = text_of(error)
    if isinstance(error, ValueError) and "read-only" in text:
        advice = "; arguments are read-only because they are shared: change a copy, x = x.copy()"
    elif isinstance(error, (TypeError, AttributeError)) and _TEXT_AND_BYTES.search(text):
        advice = "; strings come as bytes: name.decode() is the text"
    elif isinstance(error, RuntimeError) and "running event loop" in text:
        advice = "; in a notebook leaves run where a loop runs already: use an async context, or a thread of your own"
    elif (language_advice := advice_on(error)) is not None:
        advice = f"; {language_advice}"
    shown = type(error).__name__ + (f": {text}" if text else "")
    raise LeafError(
        f"{name!r} raised {shown}{where}{advice}{users_lines(error)}",
        computation_name=name,
        client_index=client_index,
    ) from error
