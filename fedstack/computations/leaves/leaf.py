"""Defines the base class of leaf computations, which does for every runtime what does not depend on the framework.

| what | how |
| --- | --- |
| the result has exactly the declared dtypes, shapes and structure | `normalize_argument`; the error has path and name |
| a buffer that the function fills anew is copied | `snapshot_of`, only where somebody else still has it |
| an error of the function says which computation and which client | `raise_leaf_error` |
| its traceback has the user's frames only | `raise_leaf_error` |
| an error keeps the index of the client in columns too | `call` and `call_column` get it |
| arguments cannot be changed | payloads are read-only; sequences are `SequenceArgument`s |
"""

import re

from fedstack.computations.leaves.arguments import argument_converter
from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.column_calls import ColumnCall
from fedstack.computations.leaves.leaf_errors import raise_leaf_error
from fedstack.computations.leaves.work_scope import WorkKind, current_scope
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import is_nothing
from fedstack.computations.values.columns import Column
from fedstack.computations.values.federated_values import column_from_values, normalize_argument
from fedstack.computations.values.snapshots import snapshot_of
from fedstack.computations.values.values import quick_reader
from fedstack.errors import FedstackError, LeafError, TypeMismatchError

# What follows the name of a function in the place of a misfit: the client, and the path inside of the result.
_INSIDE = re.compile(r"(?:\[client (\d+)\])?([^;\n]*)")


class Leaf(BoundOperation):
    """A leaf computation that is ready to run. A runtime derives its own from this and defines `evaluate`.

    A leaf lives as long as something refers to it: a cache of loaded leaves, or a plan. What it holds outside of Python
    (an executable, memory of a device) is freed by `weakref.finalize(leaf, ...)`.

    Args:
      name: What messages call it.
      parameter: The type of its argument; `None` if it takes none.
      result: The type of its result.
    """

    # What to do about a result of another type.
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
            function takes no argument.

        Returns:
          A value that fits the result type, as `fedstack.python_computation` takes it from functions.

        Raises:
          Exception: Whatever the function raises; the caller gets a `LeafError`. A `FedstackError` stays what it is.
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
            del value  # whoever else has it now, has it for good
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
        """Returns the error for a result that does not fit, in whose place the path in the result comes first.

        Whoever calls a method of a server gave fitting arguments: for them it is as good as what the function raises.
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
        # Scalars: the call is most of what they cost, so they are checked all at once.
        arguments = [None] * size if argument is None else argument.items()
        values: list[object] = []
        try:
            # Not by extend() and map(), which take a StopIteration of the function's for the end.
            append, evaluate = values.append, self.evaluate
            with ColumnCall(first_client, values):
                for item in arguments if self._convert is None else map(self._convert, arguments):
                    append(evaluate(item))
            if self._returns_nothing:
                values = [() if value is None else value for value in values]
        except BaseException as error:
            raise_leaf_error(error, self.name, first_client + len(values))
        try:
            return column_from_values(
                values,
                self.result,
                lambda i: f"{self._place}[client {first_client + i}]",
            )
        except FedstackError as error:
            raise self._misfit(error) from error.__cause__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
