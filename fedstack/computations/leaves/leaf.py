"""Defines the base class of leaf computations, which implements everything that does not depend on the framework.

| guarantee | implementation |
| --- | --- |
| the result has exactly the declared dtypes, shapes and structure | `normalize_argument`; errors state path and name |
| a buffer that the function may fill again is copied | `snapshot_of`, only if something else references the buffer |
| an error of the function names the computation and the client | `raise_leaf_error` |
| the traceback of the error has only the user's frames | `raise_leaf_error` |
| errors in calls over columns also have the index of the client | parameters of `call` and `call_column` |
| arguments cannot be modified | payloads are read-only; sequences are `SequenceArgument`s |
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from traceback import walk_tb
from typing import NoReturn, cast, overload

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall
from fedstack.computations.leaves.work_scope import WorkKind, WorkScope, current_scope
from fedstack.computations.types.language import RetryableError, SequenceType, StructType, TensorType, Type
from fedstack.computations.types.language_mistakes import advice_on
from fedstack.computations.types.type_structure import fields_of, is_nothing, is_scalar
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
    """A sequence that is passed to a leaf function. It is re-iterable and immutable.

    Each call for a client receives its own object, which counts the passes over the sequence. Therefore the order of
    the elements does not depend on retries or on other functions that read the same sequence.
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
        """Yields the elements of a pass.

        The pass starts only when the first element is requested, because `list` calls `__len__`, which may replace the
        payload, after it has obtained the iterator.
        """
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
        except TypeError:  # A stream. Its elements are read once and kept, like the elements that a worker receives.
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


# Returns what a function receives as a sequence, given its payload, the type of an element, and its converter.
MakeSequence = Callable[[Iterable[object], Type, Convert | None], object]


def argument_converter(
    type_spec: Type,
    maker_of: Callable[[StructType], Maker] | None = None,
    make_sequence: MakeSequence = SequenceArgument,
    tensor: Convert | None = None,
) -> Convert | None:
    """Returns the function that converts payloads to arguments of a leaf function; `None` if no conversion is needed.

    Args:
      type_spec: The type of the payloads.
      maker_of: Returns the function that builds the container of a struct type. By default structs become tuples.
      make_sequence: Makes what a function receives as a sequence.
      tensor: Converts arrays, if they need it.
    """
    if isinstance(type_spec, TensorType):
        return None if is_scalar(type_spec) else tensor
    if isinstance(type_spec, SequenceType):
        element, shown = type_spec.element, argument_converter(type_spec.element, maker_of, make_sequence, tensor)
        return lambda payload: make_sequence(cast("Iterable[object]", payload), element, shown)
    if not isinstance(type_spec, StructType):
        return None
    make = None if maker_of is None else maker_of(type_spec)
    members = [argument_converter(t, maker_of, make_sequence, tensor) for _, t in fields_of(type_spec)]
    if not any(members):
        return cast("Convert | None", make)
    build = cast(Maker, make or tuple)

    def convert(payload: object) -> object:
        return build(converted(members, payload))

    return convert


def converted(converters: Sequence[Convert | None], payload: object) -> list[object]:
    """Returns the members of a struct payload, converted for a leaf function."""
    values = cast("tuple[object, ...]", payload)
    return [value if convert is None else convert(value) for convert, value in zip(converters, values)]


# Matches the client and the path inside the result, which follow the function's name in the place of a mismatch.
_INSIDE = re.compile(r"(?:\[client (\d+)\])?([^;\n]*)")


class Leaf(BoundOperation):
    """A leaf computation that is ready to run. Each runtime defines a subclass that implements `evaluate`.

    A leaf is kept alive by a cache of loaded leaves or by a plan. To free resources outside of Python, such as an
    executable or device memory, register a callback with `weakref.finalize(leaf, ...)`.

    Args:
      name: The name of the computation in messages.
      parameter: The type of the argument; `None` if the computation has no parameter.
      result: The type of the result.
    """

    # The advice for a result that does not match the declared type.
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
            `bytes` for strings, tuples for structs (in the order of the type), and re-iterables for sequences. `None`
            if the function has no parameter.

        Returns:
          A value of the result type, in any form that `fedstack.python_computation` accepts from functions.

        Raises:
          Exception: Any error that the function raises. The caller receives a `LeafError`, or the unchanged error if it
            is a `FedstackError`.
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
            del value  # so that only references from outside this frame remain
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
        except Exception as error:  # of a class of the user, whose objects are converted
            raise_leaf_error(error, self.name, client)

    def _misfit(self, error: FedstackError) -> FedstackError:
        """Returns the error for a result that does not match its type. The error names the path inside the result.

        For a server's method, the error is a `LeafError`, as if the function had raised it, because the caller of the
        method is not responsible for the mismatch.
        """
        misfit = self._placed(error)
        if current_scope().kind is not WorkKind.METHOD:
            return misfit
        text = f"{self.name!r} returned a value that does not match its result type: {misfit}"
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
        # The results are scalars. Checking all of them at once is much cheaper than checking each after its call.
        arguments = [None] * size if argument is None else argument.items()
        values: list[object] = []
        try:
            # extend() and map() would mistake a StopIteration that the function raises for the end of the arguments.
            append, evaluate = values.append, self.evaluate
            with ColumnCall(first_client, values):
                for item in arguments if self._convert is None else map(self._convert, arguments):
                    append(evaluate(item))
        except BaseException as error:
            if isinstance(error, Exception):
                self._checked_column(values, first_client)  # a wrong result of an earlier client is the first error
            raise_leaf_error(error, self.name, first_client + len(values))
        return self._checked_column(values, first_client)

    def _checked_column(self, values: list[object], first_client: int) -> Column:
        if self._returns_nothing:
            values = [() if value is None else value for value in values]
        try:
            return column_from_values(values, self.result, lambda i: f"{self._place}[client {first_client + i}]")
        except FedstackError as error:
            raise self._misfit(error) from error.__cause__
        except Exception:
            for place, value in enumerate(values):
                self._checked(value, first_client + place)  # raises the error of the first client that has one
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


# Matches Python's error messages for code that mixes text with bytes or uses bytes as text.
_TEXT_AND_BYTES = re.compile(r"\bstr(ing)?\b.*\bbytes\b|\bbytes\b.*\bstr(ing)?\b|^'bytes' object has no attribute")


def _is_of_argument(error: FedstackError | RetryableError) -> bool:
    """Returns whether an error was raised while a function iterated over its argument.

    The traceback shows this: errors of computations that the function called lack the frames in which they were raised.
    """
    return any(frame.f_code is SequenceView.in_pass.__code__ for frame, _ in walk_tb(error.__traceback__))


def _is_of_elsewhere(error: FedstackError | RetryableError, scope: WorkScope) -> bool:
    """Returns whether an error concerns a call that the function made, as opposed to the call that runs the function.

    A closure that raises the error of a cancelled or unreachable call was not itself cancelled, and its worker is
    reachable. The caller of a method does not know which calls the method makes, so neither the caller nor the server
    is responsible for a deadline or a mismatch in such a call.
    """
    if scope.kind is WorkKind.CLOSURE:
        return isinstance(error, (ClosureCancelledError, RetryableError))
    return scope.kind is WorkKind.METHOD and not isinstance(error, LeafError) and not _is_of_argument(error)


def raise_leaf_error(error: BaseException, name: str, client_index: int | None) -> NoReturn:
    """Raises a `LeafError` for an error of a user's function, with the user's lines of the traceback.

    Retryable errors, fedstack's own errors and interruptions are not wrapped, but may receive the client's index.
    """
    scope = current_scope()
    is_of_elsewhere = isinstance(error, (FedstackError, RetryableError)) and _is_of_elsewhere(error, scope)
    if isinstance(error, RetryableError) and not is_of_elsewhere:
        raise error  # a retryable error requests another attempt
    if isinstance(error, FedstackError) and not is_of_elsewhere:
        # The error of a computation that the function called is already complete. The error of an element of the
        # argument already contains the element's place, as if the element had been checked before it was sent.
        if client_index is None or _is_of_argument(error):
            raise error
        placed = with_place(error, f"in the computation {name!r} at client {client_index}")
        placed.computation_name = error.computation_name or name
        placed.client_index = client_index  # the caller knows the clients of the outer computation
        raise placed from error.__cause__
    if not scope.is_contained and interrupts(error):
        raise error  # the exception is meant for this process as a whole
    error.__traceback__ = without_calling_frames(error.__traceback__)
    where = "" if client_index is None else f"; at client {client_index}"
    advice = ""
    text = text_of(error)
    if isinstance(error, ValueError) and "read-only" in text:
        advice = "; arguments are read-only because they are shared: modify a copy, x = x.copy()"
    elif isinstance(error, (TypeError, AttributeError)) and _TEXT_AND_BYTES.search(text):
        advice = "; strings are passed as bytes: use name.decode() to get the text"
    elif isinstance(error, RuntimeError) and "running event loop" in text:
        advice = (
            "; in a notebook, leaves run on a thread that already runs an event loop: use an asynchronous context, or "
            "start a thread of your own"
        )
    elif (language_advice := advice_on(error)) is not None:
        advice = f"; {language_advice}"
    shown = type(error).__name__ + (f": {text}" if text else "")
    raise LeafError(
        f"{name!r} raised {shown}{where}{advice}{users_lines(error)}",
        computation_name=name,
        client_index=client_index,
    ) from error
