"""Implements the four verbs for all of fedstack's executors.

A verb checks the types and owners of its arguments and then calls the executor's recorder. `LazyRecorder` records nodes
that an engine runs once, when their value is pulled. `ForwardingRecorder` wraps values of the executor below.
`RemoteRecorder` wraps ids in a session.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from fedstack.computations.plan.graph import declared_type
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
from fedstack.computations.types.type_sizes import check_assignable, type_text
from fedstack.computations.types.type_structure import contains_sequence, fields_of, join_path, type_from_proto
from fedstack.computations.values.containers import to_elements
from fedstack.computations.values.federated_values import check_clients, normalize_argument
from fedstack.errors import ForeignValueError, InvalidComputationError, TypeMismatchError
from fedstack.executors.base.engines import Engine, ProgramEngine
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.verb_values import Recorder, Source, VerbValue
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.value_text import describe

_T = TypeVar("_T")
# A function that runs a computation: it takes the payload of the argument and returns the payload of the result.
Run = Callable[[object], Coroutine[Any, Any, object]]
FUNCTIONS = ("lambda", "intrinsic", "data", "xla", "tensorflow")


class VerbExecutor(ClosesOnExit, Executor):
    """The base class of fedstack's executors, which implements the four verbs.

    Args:
      recorder: Creates the values of the executor.
      owned: Executors, engines and runners that are closed with this executor.
    """

    def __init__(self, recorder: Recorder[Any], *owned: Executor | Engine | PhaseRunner) -> None:
        self._recorder = recorder
        self._owned = owned

    @property
    def engine(self) -> Engine | None:
        """The engine that runs traced functions for other executors; `None` if they have to use the verbs."""
        return self._recorder.engine

    @property
    def programs(self) -> ProgramEngine | None:
        """The engine that runs programs for executors above this one; `None` if they have to use the verbs."""
        return None if self.engine is None else self.engine.programs

    @property
    def phases(self) -> PhaseRunner | None:
        """Runs client phases; `None` if this executor has no clients."""
        return None if self.engine is None else self.engine.phases

    @property
    def drives_inline(self) -> bool:
        """Whether work runs without an event loop unless it requests one with `need_event_loop`."""
        engine = self._recorder.engine
        return engine is not None and engine.drives_inline

    @property
    def waits_to_create(self) -> bool:
        """Whether the creation of a value may wait, without blocking the event loop."""
        return self._recorder.waits

    @property
    def known_clients(self) -> int | None:
        """The number of clients that federated values must have; `None` if this executor does not specify it."""
        return self._recorder.known_clients

    @property
    def label(self) -> str:
        """The name and properties of the executor, for display."""
        return f"{type(self).__name__}{' closed' if self._closed else ''}"

    @property
    def below(self) -> tuple[Executor, ...]:
        """The executors below this one."""
        return tuple(part for part in dict.fromkeys(self._owned) if isinstance(part, Executor))

    def __repr__(self) -> str:
        over = " and ".join(map(repr, self.below))
        return f"<{self.label}{over and f' over {over}'}>"

    def accepts(self, computation: computation_pb2.Computation) -> None:
        """Checks that this executor accepts a computation of this kind.

        Raises:
          InvalidComputationError: If the computation is not accepted. The message names an executor that accepts it.
        """
        engine = self._recorder.engine
        if engine is not None:
            engine.accepts(computation, self)

    async def computed(self, value: VerbValue) -> object:
        """Computes a value and returns its payload; called by the value's `compute()`."""
        return await value.pull()

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of type `type_spec`, on a thread that may run streams of user code."""
        engine = self._recorder.engine if contains_sequence(type_spec) else None  # other types have no streams
        return work() if engine is None else await engine.finish(work, type_spec)

    def check_open(self) -> None:
        """Checks that the executor is open.

        Raises:
          ClosedError: If the executor is closed.
        """
        if self._closed:
            raise self._closed_error()

    def _own(self, value: object, role: str) -> VerbValue:
        if not isinstance(value, VerbValue):
            raise ForeignValueError(
                f"Expected a value of {self!r} as {role}, found {describe(value)}; create the value with create_value()"
            )
        if value.executor is not self:
            raise foreign_value_error(self, value.executor, role)
        self._recorder.check(value, role)
        return value

    async def create_value(self, value: object, type_spec: object = None) -> VerbValue:
        """Returns an executor value for a Python value or a computation.

        Args:
          value: A value that `normalize_argument` accepts for the type, a `Computation` message or object, or an
            `Array` message.
          type_spec: The type, or an object that the language converts to a type. It is optional for computations.

        Raises:
          TypeMismatchError: If the value does not fit the type.
          CardinalityError: If the value has a different number of clients than this executor.
          InvalidComputationError: If this executor does not accept the computation.
          ClosedError: If the executor is closed.
        """
        self.check_open()
        declared = None if type_spec is None else to_declared_type(type_spec)
        if isinstance(value, array_pb2.Array):
            value = literal_of(value, declared)
        if isinstance(value, (ConcreteComputation, computation_pb2.Computation)):
            message = value.to_proto() if isinstance(value, ConcreteComputation) else value
            return await self.embed(message, declared, value)
        if declared is None:
            raise TypeMismatchError(
                f"Expected a type for any value but a computation, found none for {describe(value)}; pass type_spec"
            )
        return await self.create_known(self.normalized(value, declared), declared)

    def normalized(self, value: object, type_spec: Type) -> object:
        """Returns the payload of a value that `create_value` accepts."""
        payload = normalize_argument(value, type_spec, "value")
        check_clients(payload, type_spec, self.known_clients)
        return payload

    async def create_known(self, payload: object, type_spec: Type) -> VerbValue:
        """Returns an executor value for a payload, which must fit `type_spec`."""
        self.check_open()
        return await self._recorder.known(self, payload, type_spec)

    async def embed(self, computation: computation_pb2.Computation, declared: Type | None, source: Source) -> VerbValue:
        """Returns an executor value for a computation, which is either a function to call or computes a value.

        Args:
          computation: The computation.
          declared: The type that the caller specified, if any.
          source: The object from which the message was created. The returned value keeps this object alive.
        """
        type_spec = declared_type(computation)
        if declared is not None and not declared.is_equivalent_to(type_spec):
            raise TypeMismatchError(
                f"Expected a computation of type {type_text(declared)}, found a computation of type "
                f"{type_text(type_spec)}; omit type_spec, or pass the type of the computation"
            )
        self.accepts(computation)
        if isinstance(type_spec, FunctionType) and computation.WhichOneof("computation") not in FUNCTIONS:
            raise InvalidComputationError(
                f"Expected a computation that yields a value, found a {computation.WhichOneof('computation')} that "
                f"yields a function {type_text(type_spec)}; call this function and return its result"
            )
        return await self._recorder.computation(self, computation, type_spec, source)

    async def create_call(self, comp: object, arg: object = None) -> VerbValue:
        """Records a call and returns its result.

        Args:
          comp: The function, a value of this executor.
          arg: The argument, a value of this executor; `None` for a function without a parameter.

        Raises:
          TypeMismatchError: If `comp` is not a function, or the argument does not fit its parameter.
          ForeignValueError: If a value was created by another executor.
        """
        self.check_open()
        function = self._own(comp, "the function")
        argument = None if arg is None else self._own(arg, "the argument")
        declared = function.type_signature
        if not isinstance(declared, FunctionType):
            raise TypeMismatchError(
                f"Expected a function to call, found a value of type {type_text(declared)}; pass a function as comp"
            )
        check_argument(declared.parameter, argument)
        return await self._recorder.call(self, function, argument, declared.result)

    def prepared(self, computation: ConcreteComputation) -> Run:
        """Returns a function that runs a whole computation and can be called many times.

        The function takes the payload of the argument, or `None` without an argument, and returns the payload of the
        result. The result is the same as if each step were run through the verbs.

        Raises:
          ClosedError: If the executor is closed.
        """
        self.check_open()
        return functools.partial(self._run_by_verbs, computation)

    async def _run_by_verbs(self, computation: ConcreteComputation, payload: object) -> object:
        function = await self.create_value(computation)
        parameter = computation.type_signature.parameter
        argument = None if parameter is None else await self.create_known(payload, parameter)
        return await self.computed(await self.create_call(function, argument))

    async def create_struct(self, elements: object) -> VerbValue:
        """Records a struct of values and returns it. The type of the struct contains the names of its elements.

        Raises:
          ForeignValueError: If a value was created by another executor.
          TypeMismatchError: If `elements` is not a container of values.
        """
        self.check_open()
        pairs = pairs_of(elements)
        names = [name for name, _ in pairs]
        members = [self._own(value, join_path("element", name, i)) for i, (name, value) in enumerate(pairs)]
        types = [(n, m.type_signature) if n is not None else m.type_signature for n, m in zip(names, members)]
        return await self._recorder.struct(self, names, members, StructType(types))

    async def create_selection(self, source: object, index: object) -> VerbValue:
        """Records the selection of a member of a struct and returns the member.

        Raises:
          TypeMismatchError: If the source is not a struct, or `index` is out of range.
          ForeignValueError: If the source was created by another executor.
        """
        self.check_open()
        value = self._own(source, "the source")
        struct = value.type_signature
        if not isinstance(struct, StructType):
            raise TypeMismatchError(
                f"Expected a struct to select from, found a value of type {type_text(struct)}; pass a struct as source"
            )
        fields = fields_of(struct)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(fields):
            raise TypeMismatchError(
                f"Expected an index from 0 to {len(fields) - 1} into {type_text(struct)}, found {index!r}"
            )
        return await self._recorder.selection(self, value, index, fields[index][1])

    def close(self) -> None:
        """Closes the executor and all resources that it owns. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            for owned in self._owned:
                owned.close()


def foreign_value_error(executor: Executor, other: object, role: str) -> ForeignValueError:
    """Returns the error for a value that belongs to another executor.

    The message also makes this clear if both executors have the same `repr`.

    Args:
      executor: The executor that received the value.
      other: The executor that created the value.
      role: The role of the value in the call.
    """
    shown = repr(executor)
    found = f"a value of {other!r}" if repr(other) != shown else "a value of another executor with the same description"
    return ForeignValueError(
        f"Expected a value of {shown} as {role}, found {found}; pass each value only to the executor that created it"
    )


def engine_of(executor: Executor) -> Engine | None:
    """Returns the engine of an executor; `None` if it has no engine."""
    return executor.engine if isinstance(executor, VerbExecutor) else None


def known_clients_of(executor: Executor) -> int | None:
    """Returns the number of clients that an executor's federated values must have; `None` if it is not specified."""
    return executor.known_clients if isinstance(executor, VerbExecutor) else None


def phases_of(executor: Executor) -> PhaseRunner | None:
    """Returns the runner of an executor's client phases; `None` if it has no runner."""
    return executor.phases if isinstance(executor, VerbExecutor) else None


async def create_known(executor: Executor, payload: object, type_spec: Type) -> ExecutorValue:
    """Creates a value on any executor from a payload, which must fit `type_spec`."""
    if isinstance(executor, VerbExecutor):
        return await executor.create_known(payload, type_spec)
    return await executor.create_value(to_elements(payload, type_spec), type_spec)


async def pull(value: ExecutorValue) -> object:
    """Computes a value, whichever executor it belongs to, and returns its payload."""
    if isinstance(value, VerbValue):
        return await value.executor.computed(value)
    return normalize_argument(await value.compute(), value.type_signature, "result")


def check_argument(parameter: Type | None, argument: ExecutorValue | None) -> None:
    """Checks an argument against a parameter type.

    Raises:
      TypeMismatchError: If the argument does not fit. The message contains the path of the mismatch.
    """
    if parameter is None or argument is None:
        if parameter is not None or argument is not None:
            found = "no argument" if argument is None else f"an argument of type {type_text(argument.type_signature)}"
            wanted = "no argument" if parameter is None else f"an argument of type {type_text(parameter)}"
            raise TypeMismatchError(f"Expected {wanted}, found {found}")
        return
    check_assignable(parameter, argument.type_signature, "arg")


def to_declared_type(type_spec: object) -> Type:
    """Converts an object to a type, as the language does.

    Raises:
      TypeMismatchError: If the object cannot be converted.
    """
    try:
        return to_type(type_spec)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeMismatchError(f"Expected a type, found {describe(type_spec)}: {error}") from error


def literal_of(array: array_pb2.Array, declared: Type | None) -> computation_pb2.Computation:
    """Returns a literal computation for an array."""
    tensor = computation_pb2.TensorType(dtype=array.dtype, dims=array.shape.dim, unknown_rank=array.shape.unknown_rank)
    type_spec = type_from_proto(computation_pb2.Type(tensor=tensor)) if declared is None else declared
    return computation_pb2.Computation(type=type_spec.to_proto(), literal=computation_pb2.Literal(value=array))


def pairs_of(elements: object) -> list[tuple[str | None, object]]:
    """Returns the names and members of a container of values.

    Raises:
      TypeMismatchError: If the object is not a container of values.
    """
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
        f"Expected a container of values, found {describe(elements)}; pass a list, tuple or dictionary"
    )
