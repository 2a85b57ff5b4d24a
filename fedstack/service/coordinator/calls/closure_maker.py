"""Makes closures from the computations and Python functions that users schedule, with their arguments."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from fedstack.computations.leaves.python_computation import PythonComputation
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

# How many functions workers keep although nothing refers to them at the moment.
_MOST_FUNCTIONS = 256


class ClosureMaker:
    """Makes the closures of one coordinator; closures of the same function share the copy that workers keep.

    Args:
      result_of: Returns the closure behind an object that stands for its value; `None` for any other object.
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
        """Returns the closure to schedule, and the call that it runs.

        Raises:
          TypeMismatchError: If `fn` cannot be scheduled, or the arguments do not fit; the message has the path to the
            part that does not fit.
        """
        if not isinstance(cast(object, args), (list, tuple, type(None))):
            raise TypeMismatchError(f"Expected args as a tuple or list, found {describe(args)}; write (value,) for one")
        if not isinstance(cast(object, kwargs), (Mapping, type(None))):
            raise TypeMismatchError(f"Expected kwargs as a dictionary of arguments by name, found {describe(kwargs)}")
        call = self._call(fn, args or (), kwargs or {})
        return Closure(call, needs_of(call), repeatable, prefetch, call.function.name), call

    def _call(self, fn: object, args: Sequence[object], kwargs: Mapping[str, object]) -> ClosureCall:
        name = getattr(fn, "__name__", "") or getattr(fn, "name", "") or "a computation"
        if isinstance(fn, ConcreteComputation):
            return self._computation_call(self._function((fn,), lambda: CalledFunction(fn, name)), args, kwargs)
        if not callable(fn):
            raise TypeMismatchError(f"Expected a computation or a Python function to schedule, found {describe(fn)}")

        def function_for(types: Sequence[Type]) -> CalledFunction:
            return self._function((fn, *map(str, types)), lambda: function_of(fn, name, types))

        return python_call(name, args, kwargs, self._result_of, function_for)

    def _function(self, key: Sequence[object], make: Callable[[], CalledFunction]) -> CalledFunction:
        """Returns the function that workers run, shared with earlier calls under the same key."""
        # By identity: comparing computations by content, as the language does, is slow.
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
        """Returns the call of a computation; a single argument is the whole parameter, as always in the language."""
        parameter = function.type_signature.parameter
        computation = function.computation
        if kwargs and isinstance(computation, PythonComputation) and not _has_names(parameter):
            args, kwargs = cast("PythonComputation[..., object]", computation).by_position(args, kwargs), {}
        if parameter is None:
            if args or kwargs:
                raise TypeMismatchError(
                    f"Expected no arguments for {function.name!r}, found {len(args)} by position and {list(kwargs)}"
                )
            return ClosureCall(function, None)
        argument, clients = self._read(_packed(function.name, parameter, args, kwargs), parameter, "arg")
        return ClosureCall(function, argument, clients)

    def _read(self, value: object, type_spec: Type, path: str) -> tuple[Argument, int]:
        """Returns the argument for a value of a type, and the number of clients that it has values for."""
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
        """Returns whether a container holds the value of a closure, at any depth."""
        return self._result_of(value) is not None or any(map(self._has_results, members_of(value)))


def _has_names(parameter: Type | None) -> bool:
    return isinstance(parameter, StructType) and any(name is not None for name, _ in fields_of(parameter))


def _packed(name: str, parameter: Type, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Returns the single argument that a computation takes."""
    if len(args) == 1 and not kwargs:
        return args[0]
    fields = fields_of(parameter) if isinstance(parameter, StructType) else ()
    names = [field for field, _ in fields]
    free = names[len(args) :]
    if len(args) + len(kwargs) != len(fields) or not set(kwargs) <= set(free):
        wanted = [field or f"#{index}" for index, field in enumerate(names)] if fields else [str(parameter)]
        raise TypeMismatchError(
            f"Expected {len(wanted)} arguments for {name!r} ({', '.join(wanted)}), found {len(args)} by position and "
            f"{list(kwargs)} by name"
        )
    return tuple(args) + tuple(kwargs[cast(str, field)] for field in free)
