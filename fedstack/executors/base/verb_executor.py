"""Implements the four verbs for all of fedstack's executors: they check types and the owners of values, then record.

The recorder decides what is recorded: nodes that an engine runs once, when their value is pulled (`LazyRecorder`);
values of the target below (`ForwardingRecorder`); ids in a session (`RemoteExecutor`).
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
# Runs a computation: the payload of its argument in, the payload of its result out.
Run = Callable[[object], Coroutine[Any, Any, object]]
FUNCTIONS = ("lambda", "intrinsic", "data", "xla", "tensorflow")


class VerbExecutor(ClosesOnExit, Executor):
    """The verbs of an executor.

    Args:
      recorder: Makes its values.
      owned: What it closes.
    """

    def __init__(self, recorder: Recorder[Any], *owned: Executor | Engine | PhaseRunner) -> None:
        self._recorder = recorder
        self._owned = owned

    @property
    def engine(self) -> Engine | None:
        """Runs traced functions for other executors; `None` if they have to use the verbs."""
        return self._recorder.engine

    @property
    def programs(self) -> ProgramEngine | None:
        """Runs programs for executors above this one; `None` if they have to use the verbs."""
        return None if self.engine is None else self.engine.programs

    @property
    def phases(self) -> PhaseRunner | None:
        """Runs client phases, if this executor has clients."""
        return None if self.engine is None else self.engine.phases

    @property
    def drives_inline(self) -> bool:
        """Whether work needs no event loop unless it asks for one (`need_event_loop`)."""
        engine = self._recorder.engine
        return engine is not None and engine.drives_inline

    @property
    def waits_to_create(self) -> bool:
        """Whether creating values may wait, without blocking the event loop."""
        return self._recorder.waits

    @property
    def known_clients(self) -> int | None:
        """The number of clients that values have to be for; `None` if this executor does not say."""
        return self._recorder.known_clients

    @property
    def label(self) -> str:
        """Its name and properties, for people."""
        return f"{type(self).__name__}{' closed' if self._closed else ''}"

    @property
    def below(self) -> tuple[Executor, ...]:
        """The executors below this one."""
        return tuple(part for part in dict.fromkeys(self._owned) if isinstance(part, Executor))

    def __repr__(self) -> str:
        over = " and ".join(map(repr, self.below))
        return f"<{self.label}{over and f' over {over}'}>"

    def accepts(self, computation: computation_pb2.Computation) -> None:
        """Checks that this executor takes a computation of this kind.

        Raises:
          InvalidComputationError: If not; the message names an executor that does.
        """
        engine = self._recorder.engine
        if engine is not None:
            engine.accepts(computation, self)

    async def computed(self, value: VerbValue) -> object:
        """Computes a value, for its `compute()`, and returns the payload."""
        return await value.pull()

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        engine = self._recorder.engine if contains_sequence(type_spec) else None  # other types have no streams
        return work() if engine is None else await engine.finish(work, type_spec)

    def check_open(self) -> None:
        """Raises `ClosedError` after `close()`."""
        if self._closed:
            raise self._closed_error()

    def _own(self, value: object, role: str) -> VerbValue:
        if not isinstance(value, VerbValue):
            raise ForeignValueError(
                f"Expected a value of {self!r} as {role}, found {describe(value)}; use create_value"
            )
        if value.executor is not self:
            raise foreign_value_error(self, value.executor, role)
        self._recorder.check(value, role)
        return value

    async def create_value(self, value: object, type_spec: object = None) -> VerbValue:
        """Embeds a value or a computation.

        Args:
          value: Anything that `normalize_argument` takes for the type, a `Computation` message or object, or an `Array`
            message.
          type_spec: The type, or something that the language converts to one; it may be left out for computations.

        Raises:
          TypeMismatchError: If the value does not fit the type.
          CardinalityError: If it has values for another number of clients than this executor has.
          InvalidComputationError: If this executor does not take the computation.
          ClosedError: After `close()`.
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
                f"Expected a type for a value that is no computation, found none for {describe(value)}"
            )
        return await self.create_known(self.normalized(value, declared), declared)

    def normalized(self, value: object, type_spec: Type) -> object:
        """Returns the payload of a value that `create_value` takes."""
        payload = normalize_argument(value, type_spec, "value")
        check_clients(payload, type_spec, self.known_clients)
        return payload

    async def create_known(self, payload: object, type_spec: Type) -> VerbValue:
        """Embeds a payload that is known to fit its type."""
        self.check_open()
        return await self._recorder.known(self, payload, type_spec)

    async def embed(self, computation: computation_pb2.Computation, declared: Type | None, source: Source) -> VerbValue:
        """Embeds a computation: a function to call, or a computation of a value.

        Args:
          computation: The computation.
          declared: The type that the caller gives, if any.
          source: The object that the message was made of; it lives as long as the value.
        """
        type_spec = declared_type(computation)
        if declared is not None and not declared.is_equivalent_to(type_spec):
            raise TypeMismatchError(
                f"Expected a computation of type {type_text(declared)}, found one of type {type_text(type_spec)}"
            )
        self.accepts(computation)
        if isinstance(type_spec, FunctionType) and computation.WhichOneof("computation") not in FUNCTIONS:
            raise InvalidComputationError(
                f"Expected a computation that yields a value, found a {computation.WhichOneof('computation')} that "
                f"yields a function {type_text(type_spec)}; call the function inside and return its result"
            )
        return await self._recorder.computation(self, computation, type_spec, source)

    async def create_call(self, comp: object, arg: object = None) -> VerbValue:
        """Records a call.

        Raises:
          TypeMismatchError: If `comp` is no function, or the argument does not fit its parameter.
          ForeignValueError: If a value was made by another executor.
        """
        self.check_open()
        function = self._own(comp, "the function")
        argument = None if arg is None else self._own(arg, "the argument")
        declared = function.type_signature
        if not isinstance(declared, FunctionType):
            raise TypeMismatchError(f"Expected a function to call, found a value of type {type_text(declared)}")
        check_argument(declared.parameter, argument)
        return await self._recorder.call(self, function, argument, declared.result)

    def prepared(self, computation: ConcreteComputation) -> Run:
        """Returns a function that runs a whole computation, for many calls.

        It takes the payload of the argument, `None` if there is none, and returns the payload of the result, as the
        verbs would one by one.

        Raises:
          ClosedError: After `close()`.
        """
        return functools.partial(self._run_by_verbs, computation)

    async def _run_by_verbs(self, computation: ConcreteComputation, payload: object) -> object:
        function = await self.create_value(computation)
        parameter = computation.type_signature.parameter
        argument = None if parameter is None else await self.create_known(payload, parameter)
        return await self.computed(await self.create_call(function, argument))

    async def create_struct(self, elements: object) -> VerbValue:
        """Records a struct of values; names are kept in the type.

        Raises:
          ForeignValueError: If a value was made by another executor.
          TypeMismatchError: If `elements` is no container of values.
        """
        self.check_open()
        pairs = pairs_of(elements)
        names = [name for name, _ in pairs]
        members = [self._own(value, join_path("element", name, i)) for i, (name, value) in enumerate(pairs)]
        types = [(n, m.type_signature) if n is not None else m.type_signature for n, m in zip(names, members)]
        return await self._recorder.struct(self, names, members, StructType(types))

    async def create_selection(self, source: object, index: object) -> VerbValue:
        """Records the selection of a member.

        Raises:
          TypeMismatchError: If the source is no struct or has no such member.
        """
        self.check_open()
        value = self._own(source, "the source")
        struct = value.type_signature
        if not isinstance(struct, StructType):
            raise TypeMismatchError(f"Expected a struct to select from, found a value of type {type_text(struct)}")
        fields = fields_of(struct)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(fields):
            raise TypeMismatchError(
                f"Expected an index from 0 to {len(fields) - 1} into {type_text(struct)}, found {index!r}"
            )
        return await self._recorder.selection(self, value, index, fields[index][1])

    def close(self) -> None:
        """Closes the executor and what it owns. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            for owned in self._owned:
                owned.close()


def foreign_value_error(executor: Executor, other: object, role: str) -> ForeignValueError:
    """Returns the error for a value of another executor, which may look just like this one.

    Args:
      executor: The executor that received the value.
      other: The executor that made it.
      role: The role of the value in the call.
    """
    shown = repr(executor)
    found = f"one of {other!r}" if repr(other) != shown else "one of another executor that looks the same"
    return ForeignValueError(
        f"Expected a value of {shown} as {role}, found {found}; give values to the executor that made them"
    )


def engine_of(executor: Executor) -> Engine | None:
    """Returns the engine of an executor, if it has one."""
    return executor.engine if isinstance(executor, VerbExecutor) else None


def known_clients_of(executor: Executor) -> int | None:
    """Returns the number of clients that values of an executor have to be for, if it says."""
    return executor.known_clients if isinstance(executor, VerbExecutor) else None


def phases_of(executor: Executor) -> PhaseRunner | None:
    """Returns the runner of an executor's client phases, if it has one."""
    return executor.phases if isinstance(executor, VerbExecutor) else None


async def create_known(executor: Executor, payload: object, type_spec: Type) -> ExecutorValue:
    """Creates a value from a payload that fits its type, in any executor."""
    if isinstance(executor, VerbExecutor):
        return await executor.create_known(payload, type_spec)
    return await executor.create_value(to_elements(payload, type_spec), type_spec)


async def pull(value: ExecutorValue) -> object:
    """Computes a value of any executor and returns its payload."""
    if isinstance(value, VerbValue):
        return await value.executor.computed(value)
    return normalize_argument(await value.compute(), value.type_signature, "result")


def check_argument(parameter: Type | None, argument: ExecutorValue | None) -> None:
    """Checks an argument against a parameter type; the error names the path of the mismatch."""
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
