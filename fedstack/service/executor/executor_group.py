"""Serves the plain executor service that all peers support: clients refer to values by id, and each verb is a call."""

from collections.abc import Iterable, Mapping

from google.protobuf.message import EncodeError

from fedstack.computations.codec.payload_sizes import known_bytes
from fedstack.computations.codec.value_messages import value_from_proto, value_to_proto
from fedstack.computations.types.language import CLIENTS, SERVER, Executor, ExecutorValue, PlacementLiteral, Type
from fedstack.computations.types.type_structure import contains_function
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import PIECES_WEIGHT, sized
from fedstack.foundations.number_checks import MOST_MESSAGE_BYTES
from fedstack.proto import executor_pb2 as messages
from fedstack.service.executor import held_values
from fedstack.service.executor.requests import control, in_turns, unary, unary_sized, unary_to_bytes
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.session import Session
from fedstack.service.executor.value_types import count_members, type_of_value
from fedstack.service.host.limits import exceeded
from fedstack.transport.peers.methods import UnaryMethod
from fedstack.transport.wire.status import Code, StatusError

_PLACEMENTS = {CLIENTS.uri: CLIENTS, SERVER.uri: SERVER}


class ExecutorGroup:
    """The methods of `tensorflow_federated.v0.ExecutorGroup`.

    Args:
      core: The shared state of the service.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    @property
    def methods(self) -> Mapping[str, UnaryMethod]:
        """The methods by name."""
        return {
            "GetExecutor": control(messages.GetExecutorRequest, self.get_executor),
            "CreateValue": unary_sized(messages.CreateValueRequest, self.create_value),
            "CreateCall": control(messages.CreateCallRequest, self.create_call),
            "CreateStruct": unary(messages.CreateStructRequest, self.create_struct),
            "CreateSelection": control(messages.CreateSelectionRequest, self.create_selection),
            "Compute": unary_to_bytes(messages.ComputeRequest, self.compute),
            "Dispose": unary(messages.DisposeRequest, self.dispose),
            "DisposeExecutor": control(messages.DisposeExecutorRequest, self.dispose_executor),
        }

    async def get_executor(self, request: messages.GetExecutorRequest) -> messages.GetExecutorResponse:
        """Opens a session."""
        session = self._core.open(cardinalities_of(request.cardinalities), None)
        return messages.GetExecutorResponse(executor=messages.ExecutorId(id=session.id))

    async def create_value(
        self, request: messages.CreateValueRequest, request_bytes: int
    ) -> messages.CreateValueResponse:
        """Creates a value."""
        session = self._core.find(request.executor)
        size = await sized(request_bytes, request.value.ByteSize)
        self._core.admission.check_size(size)
        session.check_room(size)
        created = await self._created(session.executor, request.value, size)
        return messages.CreateValueResponse(value_ref=_ref(session.add(created, size)))

    async def _created(self, executor: Executor, value: messages.Value, size: int) -> ExecutorValue:
        if value.WhichOneof("kind") == "computation":
            await self._core.admission.admit(value.computation, size)
            return await held_values.create_computation(executor, value.computation)
        weight = size if value.WhichOneof("kind") == "array" else PIECES_WEIGHT * size
        known = await sized(weight, lambda: self._known(value))
        if known is not None:
            return await held_values.create_known(executor, *known)
        # Only a struct can contain functions. Its members are created one by one.
        members = [(e.name, await self._created(executor, e.value, size)) async for e in in_turns(value.struct.element)]
        return await held_values.create_struct(executor, members, self._core.limits)

    def _known(self, value: messages.Value) -> tuple[object, Type] | None:
        """Returns the payload and the type of a value, or `None` if the value contains functions."""
        most = self._core.limits.max_leaves
        if value.WhichOneof("kind") == "struct" and (found := count_members(value, most)) > most:
            raise exceeded(self._core.limits, "max_leaves", f"at least {found}", "put numbers into arrays")
        type_spec = type_of_value(value)
        if contains_function(type_spec):
            return None
        self._core.admission.check_type(type_spec)
        return value_from_proto(value, type_spec), type_spec

    async def create_call(self, request: messages.CreateCallRequest) -> messages.CreateCallResponse:
        """Creates the result of a function call."""
        session = self._core.find(request.executor)
        function = session.find(request.function_ref.id)
        argument = session.find(request.argument_ref.id) if request.HasField("argument_ref") else None
        created = await held_values.create_call(session.executor, function, argument)
        return messages.CreateCallResponse(value_ref=_ref(session.add(created)))

    async def create_struct(self, request: messages.CreateStructRequest) -> messages.CreateStructResponse:
        """Combines values into a struct."""
        session = self._core.find(request.executor)
        members = [(element.name, session.find(element.value_ref.id)) async for element in in_turns(request.element)]
        created = await held_values.create_struct(session.executor, members, self._core.limits)
        return messages.CreateStructResponse(value_ref=_ref(session.add(created)))

    async def create_selection(self, request: messages.CreateSelectionRequest) -> messages.CreateSelectionResponse:
        """Selects a member of a struct."""
        session = self._core.find(request.executor)
        source = session.find(request.source_ref.id)
        created = await session.executor.create_selection(source, request.index)
        return messages.CreateSelectionResponse(value_ref=_ref(session.add(created)))

    async def compute(self, request: messages.ComputeRequest) -> bytes:
        """Computes a value, and returns the encoded response."""
        session = self._core.find(request.executor)
        return await self._core.run(session, self._compute(session, request.value_ref.id))

    async def _compute(self, session: Session, value_id: str) -> bytes:
        value = session.find(value_id)
        pull = self._core.pull(session, value_id)
        await pull.wait()
        content = await held_values.written(session.executor, pull.result(), value.type_signature, _response)
        session.delivered(value_id)
        return content

    async def dispose(self, request: messages.DisposeRequest) -> messages.DisposeResponse:
        """Disposes of values."""
        session = self._core.find_if_there(request.executor)
        unknown = ""
        async for ref in in_turns(request.value_ref if session is not None else ()):
            if session is not None and not session.remove(ref.id):
                unknown = unknown or ref.id or "none"
        if unknown:
            raise StatusError(
                Code.NOT_FOUND,
                f"Expected the ids of known values, found the unknown id {unknown[:80]!r}; all known values were "
                "disposed of",
            )
        return messages.DisposeResponse()

    async def dispose_executor(self, request: messages.DisposeExecutorRequest) -> messages.DisposeExecutorResponse:
        """Ends a session."""
        self._core.end(request.executor)
        return messages.DisposeExecutorResponse()


def cardinalities_of(counts: Iterable[messages.Cardinality]) -> dict[PlacementLiteral, int]:
    """Returns the cardinalities in a request.

    Raises:
      InvalidValueError: If a placement is unknown, or a number is negative.
    """
    found: dict[PlacementLiteral, int] = {}
    for message in counts:
        placement = _PLACEMENTS.get(message.placement.uri)
        if placement is None or message.cardinality < 0:
            raise InvalidValueError(
                f"Expected a cardinality of at least 0 for the placement {CLIENTS.uri} or {SERVER.uri}, found "
                f"{message.cardinality} for {message.placement.uri[:80]!r}"
            )
        found[placement] = message.cardinality
    return found


def _response(payload: object, type_spec: Type) -> bytes:
    """Returns the encoded response of `Compute`, which is always a single message.

    Raises:
      ResourceLimitError: If the result does not fit into a message.
    """
    size = known_bytes(payload, type_spec)
    try:
        if size <= MOST_MESSAGE_BYTES:
            return messages.ComputeResponse(value=value_to_proto(payload, type_spec, path="result")).SerializeToString()
    except EncodeError:  # names and shapes make the message too large
        size = MOST_MESSAGE_BYTES + 1
    raise ResourceLimitError(
        f"Expected a result of at most {MOST_MESSAGE_BYTES} bytes, found a result of at least {size} bytes; select its "
        "members one by one, or use a client that supports chunked values"
    )


def _ref(value_id: str) -> messages.ValueRef:
    return messages.ValueRef(id=value_id)
