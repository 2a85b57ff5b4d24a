"""Runs client phases for the sessions of a service."""

import contextlib
from collections.abc import Generator

from fedstack.computations.codec.packing import Packer
from fedstack.computations.types.language import CLIENTS, FederatedType, Type
from fedstack.computations.values.columns import Column
from fedstack.errors import CardinalityError, InvalidValueError, ResourceLimitError
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.worker.phase_pipeline import Outbox, PhaseHost, answer
from fedstack.executors.worker.receiving import Received
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.guarded_phase import run_guarded
from fedstack.service.executor.held_values import create_known, known_payload, phases_in
from fedstack.service.executor.isolated_phase import search_phase
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.session import Session, check_new_id
from fedstack.transport.wire.parcels import Parcel


class SessionHost(PhaseHost):
    """Runs phases for a session in executors of the service, and keeps inputs of phases among the session's values.

    Args:
      core: The shared state of the service.
      session: The session. If it has a fixed number of clients, phases must have that number.
    """

    def __init__(self, core: ServiceCore, session: Session) -> None:
        super().__init__(core.admission)
        self._core = core
        self._session = session

    @contextlib.contextmanager
    def lend(self, clients: int) -> Generator[PhaseRunner, None, None]:
        with self._core.sessions.executor_for(self._session, clients) as stack:
            self._session.clients = clients
            yield phases_in(stack)

    @property
    def chunk_bytes(self) -> int:
        return self._core.limits.chunking.chunk_bytes

    def packer(self) -> Packer:
        return self._core.packer()

    def check_new_id(self, value_id: str) -> None:
        check_new_id(value_id)

    def find(self, value_id: str) -> tuple[Column, Type]:
        """Returns an input that an earlier phase has kept in the session, and the type of the input's members.

        Raises:
          StatusError: If the session has no value with the given id.
          InvalidValueError: If the value does not consist of one value per client.
        """
        known = known_payload(self._session.find(value_id))
        if known is None or not isinstance(known[0], Column) or not isinstance(known[1], FederatedType):
            raise InvalidValueError(
                f"Expected the id of an input that a phase has kept, found the id of a different value, "
                f"{value_id[:80]!r}; send the input again"
            )
        return known[0], known[1].member

    async def keep(self, value_id: str, column: Column, member: Type, size: int) -> bool:
        if self._session.has(value_id):
            return False
        # A part of an input, or a value of the server, is kept like the input of a phase with fewer clients.
        with (
            contextlib.suppress(CardinalityError, ResourceLimitError),
            self._core.sessions.executor_for(self._session, len(column)) as stack,
        ):
            value = await create_known(stack, column, FederatedType(member, CLIENTS))
            self._session.add(value, size, value_id)
            return True
        return False


async def run_phase(core: ServiceCore, session: Session, received: Received[PhaseRequest], outbox: Outbox) -> Parcel:
    """Runs a phase for a session. If the request asks for a search for crashing clients, the response is empty.

    Args:
      core: The shared state of the service.
      session: The session.
      received: The message.
      outbox: Receives the responses that precede the last one, if the client wants any.

    Returns:
      The last response.
    """
    host = SessionHost(core, session)
    if received.message.isolate:
        await search_phase(core, host, received)
        return Parcel(b"")
    with session.listed(received.message.id, outbox):
        if received.message.guarded:
            return await run_guarded(core, host, received, outbox)
        return await answer(received, host, outbox, session.outbox_of(received.message.after))
