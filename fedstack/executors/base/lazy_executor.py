"""Implements the four verbs for all of fedstack's executors: check types, record, and run when somebody pulls.

A call is recorded together with the traced function that it will run. `compute()` pulls it; what nobody pulls never
runs, and what has run is kept, value or error. Executors differ in which computations they take (`accepts`) and in how
they run a traced function (`evaluate`).
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from fedstack.computations.plan.graph import Function, declared_type
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import (
    ConcreteComputation,
    Executor,
    ExecutorValue,
    FunctionType,
    Struct,
    StructType,
    Type,
    array_pb2,
    computation_pb2,
    struct_elements,
    to_type,
)
from fedstack.computations.types.type_checks import check_assignable
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import contains_function, fields_of, join_path, type_from_proto
from fedstack.computations.values.federated_values import check_clients, normalize_argument
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import (
    ClosedError,
    ForeignValueError,
    InvalidComputationError,
    TypeMismatchError,
)
from fedstack.executors.base.lazy_values import (
    CallValue,
    Frame,
    FunctionValue,
    KnownValue,
    LazyValue,
    StructValue,
    trace_call,
)

_T = TypeVar("_T")


def foreign_value_error(executor: Executor, other: object, role: str) -> ForeignValueError:
    """Returns the error for a value that another executor has made, which may look just like this one.

    Args:
      executor: The executor that was given the value.
      other: The one that made it.
      role: What the value was given as.
    """
    shown = repr(executor)
    found = f"one of {other!r}" if repr(other) != shown else "one of another executor that looks the same"
    return ForeignValueError(
        f"Expected a value of {shown} as {role}, found {found}; give values to the executor that made them"
    )


class LazyExecutor(Executor):
    """The verbs of an executor, over two questions that subclasses answer: what it takes, how it runs a function."""

    def __init__(self) -> None:
        self._closed = False

    @property
    def drives_inline(self) -> bool:
        """Whether work here needs no event loop unless it asks for one (`need_event_loop`)."""
        return False

    @property
    def known_clients(self) -> int | None:
        """How many clients values have to be for; `None` if this executor does not say."""
        return None

    @abc.abstractmethod
    def accepts(self, computation: computation_pb2.Computation) -> None:
        """Checks that this executor takes a computation of this kind.

        Raises:
          InvalidComputationError: If not; the message names an executor that does.
        """

    @abc.abstractmethod
    async def evaluate(self, function: Function, argument: object) -> object:
        """Runs a traced function on the payload of its argument and returns the payload of its result."""

    def start_parts(self, function: Function) -> object:
        """Begins to run a function part by part; what it returns goes to `evaluate_part`."""
        return function

    @abc.abstractmethod
    async def evaluate_part(self, session: object, path: tuple[int, ...], argument: object) -> object:
        """Runs what a member of the result needs that has not run yet, and returns its payload."""

    @abc.abstractmethod
    async def pull_all(self, values: Sequence[LazyValue]) -> tuple[object, ...]:
        """Pulls several values, side by side."""

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        return work()

    def observe(self, payload: object) -> None:
        """Called with each payload that `compute()` returns; for executors that count or record."""

    def check_open(self) -> None:
        """Raises `ClosedError` after `close()`."""
        if self._closed:
            raise ClosedError(f"Expected an open executor, found {type(self).__name__} closed; create a new one")

    def known(self, payload: object, type_spec: Type) -> LazyValue:
        """Embeds a payload that is known to fit its type."""
        self.check_open()
        return KnownValue(self, type_spec, payload)

    def _check_own(self, value: object, role: str) -> LazyValue:
        if not isinstance(value, LazyValue):
            raise ForeignValueError(
                f"Expected a value of {self!r} as {role}, found {describe(value)}; use create_value"
            )
        if value.executor is not self:
            raise foreign_value_error(self, value.executor, role)
        return value

    async def create_value(self, value: object, type_spec: object = None) -> LazyValue:
        """Embeds a value or a computation.

        Args:
          value: Anything that `normalize_argument` takes for the type, a `Computation` message or object, or an `Array`
            message.
          type_spec: The type, or something that the language converts to one; it may be left out for computations.

        Raises:
          TypeMismatchError: If the value does not fit the type.
          CardinalityError: If it has values for another number of clients than there are.
          InvalidComputationError: If this executor does not take the computation.
          ClosedError: After `close()`.
        """
        self.check_open()
        declared = None if type_spec is None else to_declared_type(type_spec)
        if isinstance(value, ConcreteComputation):
            made = self.embed(value.to_proto(), declared)
            if isinstance(made, FunctionValue):
                made.source = value
            return made
        if isinstance(value, computation_pb2.Computation):
            return self.embed(value, declared)
        if isinstance(value, array_pb2.Array):
            return self.embed(literal_of(value, declared), declared)
        if declared is None:
            raise TypeMismatchError(
                f"Expected a type for a value that is no computation, found none for {describe(value)}"
            )
        payload = normalize_argument(value, declared, "value")
        check_clients(payload, declared, self.known_clients)
        return KnownValue(self, declared, payload)

    def embed(self, computation: computation_pb2.Computation, declared: Type | None) -> LazyValue:
        """Embeds a computation: a function to call, or what yields a value."""
        type_spec = declared_type(computation)
        if declared is not None and not declared.is_equivalent_to(type_spec):
            raise TypeMismatchError(
                f"Expected a computation of type {type_text(declared)}, found one of type {type_text(type_spec)}"
            )
        self.accepts(computation)
        if isinstance(type_spec, FunctionType):
            if computation.WhichOneof("computation") in ("lambda", "intrinsic", "data", "xla", "tensorflow"):
                return FunctionValue(self, type_spec, computation)
            raise InvalidComputationError(
                f"Expected a computation that yields a value, found a {computation.WhichOneof('computation')} that "
                f"yields a function {type_text(type_spec)}; call the function inside and return its result"
            )
        return CallValue(self, type_spec, Frame(self, plans.plan(computation), None))

    async def create_call(self, comp: object, arg: object = None) -> LazyValue:
        """Records a call.

        Raises:
          TypeMismatchError: If `comp` is no function, or the argument does not fit its parameter.
          ForeignValueError: If a value was made by another executor.
        """
        self.check_open()
        function = self._check_own(comp, "the function")
        argument = None if arg is None else self._check_own(arg, "the argument")
        declared = function.type_signature
        if not isinstance(function, FunctionValue) or not isinstance(declared, FunctionType):
            raise TypeMismatchError(f"Expected a function to call, found a value of type {type_text(declared)}")
        check_argument(declared.parameter, argument)
        needs_tracing = contains_function(declared.parameter) if declared.parameter is not None else False
        if not needs_tracing:
            return CallValue(self, declared.result, Frame(self, plans.plan(function.computation), argument, function))
        traced, free = trace_call(function, cast(LazyValue, argument))
        inputs = StructValue(self, StructType([value.type_signature for value in free]), free)
        return CallValue(self, declared.result, Frame(self, traced, inputs, (function, argument)))

    async def create_struct(self, elements: object) -> LazyValue:
        """Records a struct of values; names are kept in the type.

        Raises:
          ForeignValueError: If a value was made by another executor.
          TypeMismatchError: If `elements` is no container of values.
        """
        self.check_open()
        pairs = pairs_of(elements)
        members = [self._check_own(value, join_path("element", name, i)) for i, (name, value) in enumerate(pairs)]
        types = [(n, m.type_signature) if n is not None else m.type_signature for (n, _), m in zip(pairs, members)]
        return StructValue(self, StructType(types), members)

    async def create_selection(self, source: object, index: object) -> LazyValue:
        """Records the selection of a member.

        Raises:
          TypeMismatchError: If the source is no struct or has no such member.
        """
        self.check_open()
        value = self._check_own(source, "the source")
        struct = value.type_signature
        if not isinstance(struct, StructType):
            raise TypeMismatchError(f"Expected a struct to select from, found a value of type {type_text(struct)}")
        fields = fields_of(struct)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(fields):
            raise TypeMismatchError(
                f"Expected an index from 0 to {len(fields) - 1} into {type_text(struct)}, found {index!r}"
            )
        return value.member(index, fields[index][1])

    def close(self) -> None:
        """Closes the executor and what it owns. Idempotent; never raises."""
        self._closed = True


def check_argument(parameter: Type | None, argument: ExecutorValue | None) -> None:
    """Checks an argument against a parameter type, naming the path of a misfit."""
    if parameter is None or argument is None:
        if parameter is not None or argument is not None:
            found = "none" if argument is None else f"one of type {type_text(argument.type_signature)}"
            wanted = "no argument" if parameter is None else f"an argument of type {type_text(parameter)}"
            raise TypeMismatchError(f"Expected {wanted}, found {found}")
        return
    check_assignable(parameter, argument.type_signature, "arg")


def to_declared_type(type_spec: object) -> Type:
    """Returns a type from anything that the language converts to one."""
    try:
        return to_type(type_spec)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(f"Expected a type, found {describe(type_spec)}: {error}") from error


def literal_of(array: array_pb2.Array, declared: Type | None) -> computation_pb2.Computation:
    """Returns the computation of an array."""
    tensor = computation_pb2.TensorType(dtype=array.dtype, dims=array.shape.dim, unknown_rank=array.shape.unknown_rank)
    type_spec = type_from_proto(computation_pb2.Type(tensor=tensor)) if declared is None else declared
    return computation_pb2.Computation(type=type_spec.to_proto(), literal=computation_pb2.Literal(value=array))


def pairs_of(elements: object) -> list[tuple[str | None, object]]:
    """Lists the names and members of a container of values."""
    if isinstance(elements, Struct):
        return struct_elements(elements)
    if isinstance(elements, Mapping):
        return list(cast("Mapping[str, object]", elements).items())
    if hasattr(elements, "_asdict"):
        return list(cast(Any, elements)._asdict().items())
    if isinstance(elements, (list, tuple)):
        return [(None, element) for element in cast("Sequence[object]", elements)]
    attributes = getattr(type(elements), "__attrs_attrs__", None)
    if attributes is not None:
        return [(attribute.name, getattr(elements, attribute.name)) for attribute in attributes]
    raise TypeMismatchError(
        f"Expected a container of values, found {describe(elements)}; give a list, tuple or dictionary"
    )
