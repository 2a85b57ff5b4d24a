"""Serves the executor service as every peer knows it: values by id, one call per verb."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.computations.codec import value_from_proto, value_to_proto
from fedstack.computations.language import CLIENTS, SERVER, Executor, ExecutorValue, PlacementLiteral
from fedstack.computations.type_structure import contains_function
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.proto import executor_pb2 as messages
from fedstack.service import held_values
from fedstack.service.service_core import ServiceCore
from fedstack.service.sessions import Session
from fedstack.service.value_types import type_of_value
from fedstack.transport.methods import UnaryMethod
from fedstack.transport.status import Code, StatusError

_M = TypeVar("_M", bound=Message)
_MAX_MESSAGE = (1 << 31) - 1
_PLACEMENTS = {CLIENTS.uri: CLIENTS, SERVER.uri: SERVER}


class ExecutorGroup:
    """The methods of `tensorflow_federated.v0.ExecutorGroup`.

    Args:
      core: The sessions, and the rules for them.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    @property
    def methods(self) -> Mapping[str, UnaryMethod]:
        """The methods by name."""
        return {
            "GetExecutor": _unary(messages.GetExecutorRequest, self.get_executor),
            "CreateValue": _unary(messages.CreateValueRequest, self.create_value),
            "CreateCall": _unary(messages.CreateCallRequest, self.create_call),
            "CreateStruct": _unary(messages.CreateStructRequest, self.create_struct),
            "CreateSelection": _unary(messages.CreateSelectionRequest, self.create_selection),
            "Compute": _unary(messages.ComputeRequest, self.compute),
            "Dispose": _unary(messages.DisposeRequest, self.dispose),
            "DisposeExecutor": _unary(messages.DisposeExecutorRequest, self.dispose_executor),
        }

    async def get_executor(self, request: messages.GetExecutorRequest) -> messages.GetExecutorResponse:
        """Opens a session."""
        session = self._core.open(cardinalities_of(request.cardinalities), None)
        return messages.GetExecutorResponse(executor=messages.ExecutorId(id=session.id))

    async def create_value(self, request: messages.CreateValueRequest) -> messages.CreateValueResponse:
        """Creates a value."""
        session = self._core.find(request.executor)
        size = request.value.ByteSize()
        self._core.check_size(size)
        session.check_room(size)
        created = await self._created(session.executor, request.value)
        return messages.CreateValueResponse(value_ref=_ref(session.add(created, size)))

    async def _created(self, executor: Executor, value: messages.Value) -> ExecutorValue:
        if value.WhichOneof("kind") == "computation":
            await self._core.admit(value.computation)
            return await held_values.create_computation(executor, value.computation)
        type_spec = type_of_value(value)
        if not contains_function(type_spec):
            return await held_values.create_known(executor, value_from_proto(value, type_spec), type_spec)
        # Only structs have functions in them; these have to be found by whoever calls them.
        members = [(e.name, await self._created(executor, e.value)) for e in value.struct.element]
        return await held_values.create_struct(executor, members)

    async def create_call(self, request: messages.CreateCallRequest) -> messages.CreateCallResponse:
        """Calls a function."""
        session = self._core.find(request.executor)
        function = session.find(request.function_ref.id)
        argument = session.find(request.argument_ref.id) if request.HasField("argument_ref") else None
        created = await held_values.create_call(session.executor, function, argument)
        return messages.CreateCallResponse(value_ref=_ref(session.add(created)))

    async def create_struct(self, request: messages.CreateStructRequest) -> messages.CreateStructResponse:
        """Packs values into a struct."""
        session = self._core.find(request.executor)
        members = [(element.name, session.find(element.value_ref.id)) for element in request.element]
        created = await held_values.create_struct(session.executor, members)
        return messages.CreateStructResponse(value_ref=_ref(session.add(created)))

    async def create_selection(self, request: messages.CreateSelectionRequest) -> messages.CreateSelectionResponse:
        """Selects a member."""
        session = self._core.find(request.executor)
        source = session.find(request.source_ref.id)
        created = await session.executor.create_selection(source, request.index)
        return messages.CreateSelectionResponse(value_ref=_ref(session.add(created)))

    async def compute(self, request: messages.ComputeRequest) -> messages.ComputeResponse:
        """Computes a value."""
        session = self._core.find(request.executor)
        return await self._core.run(session, self._compute(session, request.value_ref.id))

    async def _compute(self, session: Session, value_id: str) -> messages.ComputeResponse:
        value = session.find(value_id)
        pull = session.pull(value_id)
        await pull.wait()
        payload = pull.result()
        session.delivered(value_id)
        response = messages.ComputeResponse(value=value_to_proto(payload, value.type_signature, path="result"))
        if response.ByteSize() > _MAX_MESSAGE:
            raise ResourceLimitError(
                f"Expected a result of at most {_MAX_MESSAGE} bytes, found {response.ByteSize()}; select its members "
                "one by one, or use a client with chunked values"
            )
        return response

    async def dispose(self, request: messages.DisposeRequest) -> messages.DisposeResponse:
        """Lets go of values."""
        session = self._core.find_if_there(request.executor)
        unknown = [] if session is None else [ref.id for ref in request.value_ref if not session.remove(ref.id)]
        if unknown:
            raise StatusError(
                Code.NOT_FOUND,
                f"Expected the ids of values, found {unknown[0][:80]!r}, which there is none of; all others are gone",
            )
        return messages.DisposeResponse()

    async def dispose_executor(self, request: messages.DisposeExecutorRequest) -> messages.DisposeExecutorResponse:
        """Ends a session."""
        self._core.end(request.executor)
        return messages.DisposeExecutorResponse()


def cardinalities_of(counts: Iterable[messages.Cardinality]) -> dict[PlacementLiteral, int]:
    """Returns the cardinalities in a request.

    Raises:
      InvalidValueError: If a placement is unknown, or a number negative.
    """
    found: dict[PlacementLiteral, int] = {}
    for message in counts:
        placement = _PLACEMENTS.get(message.placement.uri)
        if placement is None or message.cardinality < 0:
            raise InvalidValueError(
                f"Expected a number of at least 0 at {CLIENTS.uri} or {SERVER.uri}, found {message.cardinality} at "
                f"{message.placement.uri[:80]!r}"
            )
        found[placement] = message.cardinality
    return found


def _ref(value_id: str) -> messages.ValueRef:
    return messages.ValueRef(id=value_id)


def _unary(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    async def run(content: bytes) -> bytes:
        return (await handle(parsed(request, content))).SerializeToString()

    return UnaryMethod(run)


def parsed(message: type[_M], content: bytes) -> _M:
    """Returns a message from its bytes.

    Raises:
      InvalidValueError: If they are none.
    """
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise InvalidValueError(
            f"Expected a {message.DESCRIPTOR.name}, found {len(content)} bytes that are none, or are nested too deep: "
            f"{error}"
        ) from error
