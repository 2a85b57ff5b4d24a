"""Says what a closure calls, and with which argument: known values, and values of other closures inside of them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import attrs

from fedstack.computations.leaves.python.python_computation import PythonComputation
from fedstack.computations.types.language import (
    ConcreteComputation,
    FederatedType,
    FunctionType,
    StructType,
    Type,
)
from fedstack.computations.types.type_checks import check_assignable
from fedstack.computations.types.type_structure import fields_of, is_client_valued, join_path
from fedstack.computations.values.federated_values import count_clients, normalize_argument
from fedstack.computations.values.records import split_struct
from fedstack.computations.values.snapshots import snapshot_of
from fedstack.errors import TypeMismatchError
from fedstack.service.coordinator.calls.structures import members_of
from fedstack.service.coordinator.scheduling.closures import Closure


@attrs.frozen(eq=False)
class Function:
    """What closures call. Workers keep it for as long as anything refers to this.

    Attributes:
      computation: The computation; it keeps a Python function alive.
      name: What messages call it.
      signature: The parameters of the Python function that it is made of, if that tells them.
    """

    computation: ConcreteComputation
    name: str
    signature: inspect.Signature | None = None

    @property
    def type_signature(self) -> FunctionType:
        """Its type."""
        return self.computation.type_signature


@attrs.frozen(eq=False)
class Known:
    """An argument, or a member of one, that is here."""

    payload: object
    type_signature: Type


@attrs.frozen(eq=False)
class Lasting:
    """One that is here and comes in many calls. Workers keep it for as long as anything refers to this."""

    payload: object
    type_signature: Type


@attrs.frozen(eq=False)
class Result:
    """One that is the value of a closure, or in the box that is.

    Attributes:
      closure: The closure.
      type_signature: Its type.
      boxed: Whether it is in a box.
      clients: The number of clients that it has values of.
    """

    closure: Closure
    type_signature: Type
    boxed: bool = False
    clients: int = 0


@attrs.frozen(eq=False)
class Opened:
    """One that is in the box that is the value of a closure."""

    function: Function
    boxed: Result


@attrs.frozen(eq=False)
class Members:
    """A struct of others."""

    names: Sequence[str | None]
    members: "Sequence[Argument]"


Argument = Known | Lasting | Result | Opened | Members


@attrs.frozen(eq=False)
class Call:
    """What a closure runs.

    Attributes:
      function: What it calls.
      argument: With what; `None` without a parameter.
      clients: The number of clients of the federated values in the argument.
      boxed: Whether what it yields is in a box.
    """

    function: Function
    argument: Argument | None
    clients: int = 0
    boxed: bool = False

    @property
    def result_type(self) -> Type:
        """The type of what it yields."""
        return self.function.type_signature.result

    def result_of(self, closure: Closure) -> Result:
        """Returns the value of the closure that runs this, as an argument of others."""
        clients = self.clients if _has_clients(self.result_type) else 0
        return Result(closure, self.result_type, self.boxed, clients)


def function_name(computation: object) -> str:
    """Returns what messages call a computation."""
    name = getattr(computation, "__name__", "")
    return name or getattr(computation, "name", "") or "a computation"


def call_of(
    function: Function,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    result_of: Callable[[object], Result | None],
    opener_for: Callable[[Type], Function],
) -> Call:
    """Returns the call of a function.

    Args:
      function: The function.
      args: Its arguments by position: one alone is the whole argument, as everywhere in the language.
      kwargs: Those by name.
      result_of: Returns the closure of something that stands for its value, and `None` for anything else.
      opener_for: Returns what takes a value of a type out of its box.

    Raises:
      TypeMismatchError: If they do not fit the parameter; the message has the path to what does not.
    """
    parameter = function.type_signature.parameter
    computation = function.computation
    if kwargs and isinstance(computation, PythonComputation) and not _has_names(parameter):
        args, kwargs = cast("PythonComputation[..., object]", computation).by_position(args, kwargs), {}
    if parameter is None:
        if args or kwargs:
            raise TypeMismatchError(
                f"Expected no arguments for {function.name!r}, found {len(args)} by position and {list(kwargs)}"
            )
        return Call(function, None)
    reader = _Reader(result_of, opener_for)
    argument = reader.read(_packed(function.name, parameter, args, kwargs), parameter, "arg")
    return Call(function, argument, reader.clients)


def needs_of(argument: Argument | None) -> tuple[Closure, ...]:
    """Returns the closures whose values are in an argument."""
    if isinstance(argument, Result):
        return (argument.closure,)
    if isinstance(argument, Opened):
        return (argument.boxed.closure,)
    if isinstance(argument, Members):
        return tuple(need for member in argument.members for need in needs_of(member))
    return ()


def _has_clients(type_spec: Type) -> bool:
    if isinstance(type_spec, StructType):
        return any(_has_clients(member) for _, member in fields_of(type_spec))
    return isinstance(type_spec, FederatedType) and is_client_valued(type_spec)


def _has_names(parameter: Type | None) -> bool:
    return isinstance(parameter, StructType) and any(name is not None for name, _ in fields_of(parameter))


def _packed(name: str, parameter: Type, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Returns the one argument that a computation takes."""
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


class _Reader:
    """Reads an argument.

    Attributes:
      clients: The number of clients of what has been read.
    """

    def __init__(self, result_of: Callable[[object], Result | None], opener_for: Callable[[Type], Function]) -> None:
        self._result_of = result_of
        self._opener_for = opener_for
        self.clients = 0

    def read(self, value: object, type_spec: Type, path: str) -> Argument:
        result = self._result_of(value)
        if result is not None:
            if result.boxed:
                return Opened(self._opener_for(type_spec), result)
            check_assignable(type_spec, result.type_signature, path)
            self.clients = self.clients or result.clients
            return result
        if isinstance(type_spec, StructType) and self._has_results(value):
            fields = fields_of(type_spec)
            members = split_struct(value, type_spec, path)
            return Members(
                [name for name, _ in fields],
                [
                    self.read(member, member_type, join_path(path, name, index))
                    for index, (member, (name, member_type)) in enumerate(zip(members, fields))
                ],
            )
        payload = normalize_argument(value, type_spec, path)
        self.clients = self.clients or count_clients(payload, type_spec, path) or 0
        keep = None if isinstance(type_spec, FederatedType) else snapshot_of(type_spec)
        return Known(payload if keep is None else keep(payload, None), type_spec)

    def _has_results(self, value: object) -> bool:
        """Returns whether a container has the value of a closure in it, at any depth."""
        if self._result_of(value) is not None:
            return True
        return any(map(self._has_results, members_of(value)))
