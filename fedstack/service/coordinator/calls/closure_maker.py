"""Creates closures from scheduled computations and Python functions and their arguments."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from fedstack.computations.leaves.python_computation import LeafComputation
from fedstack.computations.types.language import ConcreteComputation, FederatedType, StructType, Type
from fedstack.computations.types.type_sizes import check_assignable
from fedstack.computations.types.type_structure import fields_of, join_path
from fedstack.computations.values.federated_values import count_clients, normalize_argument
from fedstack.computations.values.ownership import snapshot_of
from fedstack.computations.values.records import split_struct
from fedstack.errors import TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.calls.closures import (
    Argument,
    CalledFunction,
    Closure,
    ClosureCall,
    ConstantArgument,
    ResultArgument,
    StructArgument,
    needs_of,
)
from fedstack.service.coordinator.calls.python_calls import function_of, opener_for, python_call
from fedstack.service.coordinator.calls.structures import members_of

# The number of recently used functions that workers keep even if no closure refers to them.
_MOST_FUNCTIONS = 256


class ClosureMaker:
    """Creates the closures of one coordinator. On each worker, closures that call the same function share it.

    Args:
      result_of: Returns the argument for a handle to a closure's value, and `None` for any other object.
    """

    def __init__(self, result_of: Callable[[object], ResultArgument | None]) -> None:
        self._result_of = result_of
        self._functions: OrderedDict[tuple[object, ...], tuple[object, CalledFunction]] = OrderedDict()

    def closure(
        self,
        fn: object,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        repeatable: bool,
        prefetch: bool,
    ) -> tuple[Closure, ClosureCall]:
        """Creates a closure to schedule.

        Args:
          fn: The computation or Python function to call.
          args: The positional arguments.
          kwargs: The keyword arguments.
          repeatable: Whether the closure may run again after its worker or its value is lost.
          prefetch: Whether to fetch the value as soon as it is ready.

        Returns:
          The closure, and the call that it runs.

        Raises:
          TypeMismatchError: If `fn` cannot be scheduled, or if an argument does not match its parameter. The message
            contains the path to the mismatch.
        """
        if not isinstance(cast(object, args), (list, tuple, type(None))):
            raise TypeMismatchError(
                f"Expected args to be a tuple or list, found {describe(args)}; write (value,) for a single argument"
            )
        if not isinstance(cast(object, kwargs), (Mapping, type(None))):
            raise TypeMismatchError(
                f"Expected kwargs to be a dictionary from names to arguments, found {describe(kwargs)}"
            )
        call = self._call(fn, args or (), kwargs or {})
        return Closure(call, needs_of(call), repeatable, prefetch, call.function.name), call

    def _call(self, fn: object, args: Sequence[object], kwargs: Mapping[str, object]) -> ClosureCall:
        name = getattr(fn, "__name__", "") or getattr(fn, "name", "") or "a computation"
        if isinstance(fn, ConcreteComputation):
            return self._computation_call(self._function((fn,), lambda: CalledFunction(fn, name)), args, kwargs)
        if not callable(fn):
            raise TypeMismatchError(
                f"Expected a computation or a Python function to schedule, found {describe(fn)}; pass a function"
            )

        def function_for(types: Sequence[Type]) -> CalledFunction:
            return self._function((fn, *map(str, types)), lambda: function_of(fn, name, types))

        return python_call(name, args, kwargs, self._result_of, function_for)

    def _function(self, key: Sequence[object], make: Callable[[], CalledFunction]) -> CalledFunction:
        """Returns the cached function for a key. If there is none, creates the function with `make`."""
        # Compare the parts of keys by identity, because comparing computations by content is slow.
        known = tuple(part if isinstance(part, str) else id(part) for part in key)
        found = self._functions.get(known)
        if found is None:
            found = self._functions[known] = key, make()
            if len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)
        return found[1]

    def _computation_call(
        self, function: CalledFunction, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> ClosureCall:
        """Returns the call of a computation. A single argument is always the whole parameter."""
        parameter = function.type_signature.parameter
        computation = function.computation
        if kwargs and isinstance(computation, LeafComputation) and not _has_names(parameter):
            args, kwargs = cast("LeafComputation[..., object]", computation).by_position(args, kwargs), {}
        if parameter is None:
            if args or kwargs:
                raise TypeMismatchError(
                    f"Expected no arguments for {function.name!r}, found {len(args)} by position and {list(kwargs)} by "
                    "name; omit the arguments"
                )
            return ClosureCall(function, None)
        argument, clients = self._read(_packed(function.name, parameter, args, kwargs), parameter, "arg")
        return ClosureCall(function, argument, clients)

    def _read(self, value: object, type_spec: Type, path: str) -> tuple[Argument, int]:
        """Returns the argument for a value, and the number of clients of its federated values (0 if it has none)."""
        result = self._result_of(value)
        if result is not None:
            if result.boxed:
                opener = self._function((str(type_spec),), lambda: opener_for(type_spec))
                return ClosureCall(opener, result), 0
            check_assignable(type_spec, result.type_signature, path)
            return result, result.clients
        if isinstance(type_spec, StructType) and self._has_results(value):
            fields = fields_of(type_spec)
            members = [
                self._read(member, member_type, join_path(path, name, index))
                for index, (member, (name, member_type)) in enumerate(zip(split_struct(value, type_spec, path), fields))
            ]
            clients = next((count for _, count in members if count), 0)
            return StructArgument([name for name, _ in fields], [member for member, _ in members]), clients
        payload = normalize_argument(value, type_spec, path)
        clients = count_clients(payload, type_spec, path) or 0
        keep = None if isinstance(type_spec, FederatedType) else snapshot_of(type_spec)
        return ConstantArgument(payload if keep is None else keep(payload, None), type_spec), clients

    def _has_results(self, value: object) -> bool:
        """Returns whether a value is a handle to a closure's value, or contains one at any depth."""
        return self._result_of(value) is not None or any(map(self._has_results, members_of(value)))


def _has_names(parameter: Type | None) -> bool:
    return isinstance(parameter, StructType) and any(name is not None for name, _ in fields_of(parameter))


def _packed(name: str, parameter: Type, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Combines the arguments of a call into the single argument of a computation."""
    if len(args) == 1 and not kwargs:
        return args[0]
    fields = fields_of(parameter) if isinstance(parameter, StructType) else ()
    names = [field for field, _ in fields]
    free = names[len(args) :]
    if len(args) + len(kwargs) != len(fields) or not set(kwargs) <= set(free):
        wanted = [field or f"#{index}" for index, field in enumerate(names)] if fields else [str(parameter)]
        raise TypeMismatchError(
            f"Expected {len(wanted)} arguments for {name!r} ({', '.join(wanted)}), found {len(args)} by position and "
            f"{list(kwargs)} by name; pass each argument once"
        )
    return tuple(args) + tuple(kwargs[cast(str, field)] for field in free)
