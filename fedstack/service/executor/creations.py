"""Creates what a client asks for in its session: values, functions, and what is made of them, in their order."""

import asyncio
from collections.abc import Iterable
from typing import Any

from fedstack.computations.codec.unpacking import read_typed
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import contains_function
from fedstack.errors import InvalidValueError
from fedstack.executors.base.verb_executor import known_clients_of
from fedstack.executors.concurrency.off_loop import LOOP_BYTES, sized
from fedstack.executors.worker.phase_pipeline import ARRAY_SPARE_BYTES
from fedstack.executors.worker.received import Received
from fedstack.proto import extensions_pb2 as messages
from fedstack.service.executor.requests import in_turns, read_value
from fedstack.service.executor.sessions import held_values
from fedstack.service.executor.sessions.service_core import ServiceCore
from fedstack.service.executor.sessions.session import Session, check_new_id

# What names and types add to a function.
_FUNCTION_SPARE_BYTES = 1024
# How many small ones are created before others have the loop.
_MOST_AT_ONCE = 256


class Creations:
    """Creates what clients send.

    Args:
      core: The sessions, and the rules for them.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def create(
        self,
        session: Session,
        creations: Iterable[messages.Creation],
        received: Received[Any],
    ) -> None:
        """Creates values, each under its id; one that is taken is left as it is.

        Args:
          session: Where to.
          creations: What to create, each after what it needs.
          received: The message in which they came, and the bytes of their large arrays.
        """
        request_bytes = received.size
        at_once = _MOST_AT_ONCE if request_bytes <= LOOP_BYTES else 1
        for index, creation in enumerate(creations):
            if index and not index % at_once:
                await asyncio.sleep(0)  # others have the loop
            check_new_id(creation.id)
            is_there = session.has(creation.id)
            if is_there and not creation.HasField("value"):
                continue
            size = 0
            if creation.HasField("value"):
                payload, type_spec, size = await self.value(session, creation.value, received)
                if is_there:
                    continue
                created = await held_values.create_known(session.executor, payload, type_spec)
            else:
                if creation.HasField("computation"):
                    size = await sized(request_bytes, creation.computation.ByteSize)
                    self._core.admission.check_size(size, _FUNCTION_SPARE_BYTES)
                session.check_room(size)
                created = await self._created(session, creation, size)
            if not session.has(creation.id):  # the same call may have come twice
                session.add(created, size, creation.id)

    async def value(
        self, session: Session, value: messages.TypedValue, received: Received[Any]
    ) -> tuple[object, Type, int]:
        """Returns the payload of a value that has come, with the bytes that follow, its type and its size."""

        def check(size: int) -> None:
            self._core.admission.check_size(size, ARRAY_SPARE_BYTES)
            session.check_room(size)

        clients, most = known_clients_of(session.executor), self._core.admission.max_bytes
        return await read_value(
            value.value,
            lambda unpacker: read_typed(value, unpacker, self._type_of),
            received,
            check=check,
            max_bytes=most,
            clients=clients,
        )

    def _type_of(self, proto: computation_pb2.Type) -> Type:
        type_spec = self._core.admission.read_type(proto)
        if contains_function(type_spec):
            raise InvalidValueError(
                f"Expected a value without functions in it, found one of type {type_text(type_spec)}; create the "
                "functions as computations, and put them and the rest into a struct"
            )
        return type_spec

    async def _created(self, session: Session, creation: messages.Creation, size: int) -> Any:
        executor = session.executor
        kind = creation.WhichOneof("kind")
        if kind == "computation":
            await self._core.admission.admit(creation.computation, size)
            return await held_values.create_computation(executor, creation.computation)
        if kind == "call":
            call = creation.call
            argument = session.find(call.argument_ref.id) if call.HasField("argument_ref") else None
            return await held_values.create_call(executor, session.find(call.function_ref.id), argument)
        if kind == "struct":
            elements = creation.struct.element
            members = [(element.name, session.find(element.value_ref.id)) async for element in in_turns(elements)]
            return await held_values.create_struct(executor, members, self._core.limits)
        if kind == "selection":
            source = session.find(creation.selection.source_ref.id)
            return await executor.create_selection(source, creation.selection.index)
        raise InvalidValueError("Expected something to create, found an empty creation")
