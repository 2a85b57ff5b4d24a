"""Defines the recorder of remote executors, which represents each value by its id in another process."""

from collections.abc import Sequence

from fedstack.computations.types.language import CLIENTS, Type, computation_pb2
from fedstack.errors import FedstackError, StaleSessionError
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.base.verb_values import Recorder, Source
from fedstack.executors.remote.remote_sessions import Made, MovesValues, RemoteSession, naming_the_worker
from fedstack.executors.remote.remote_values import SessionValue, naming_intrinsics
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.remote.streaming_session import StreamingSession


class RemoteRecorder(Recorder[SessionValue]):
    """Creates values on a peer. Does not check types; the caller passes the type of each value.

    Functions are sent immediately. With a fedstack worker, small values and values that are derived from other values
    receive an id immediately, but are sent together with the first call that needs them.

    Args:
      sessions: Opens the sessions that contain the values.
      stream_structs: Whether structs are sent and fetched leaf by leaf.
    """

    def __init__(self, sessions: SessionOpener, stream_structs: bool) -> None:
        self._sessions = sessions
        self._stream_structs = stream_structs

    @property
    def known_clients(self) -> int | None:
        # The peer would also reject a wrong number of clients, but only later, when it receives the value.
        return (self._sessions.cardinalities or {}).get(CLIENTS)

    async def computation(
        self, owner: VerbExecutor, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> SessionValue:
        """Sends a computation.

        Raises:
          CarrierError: If a leaf function cannot be sent to the peer.
        """
        keeper = await self._sessions.get()
        try:
            portable = keeper.session.carriers.portable(message)
        except FedstackError as error:
            raise naming_the_worker(error, self._sessions.stub) from error.__cause__
        return await self._made(owner, keeper, keeper.session.put_computation(portable), type_spec, source)

    async def known(self, owner: VerbExecutor, payload: object, type_spec: Type) -> SessionValue:
        keeper = await self._sessions.get()
        return await self._made(owner, keeper, self._moving(keeper.session).put(payload, type_spec), type_spec)

    async def streamed(self, owner: VerbExecutor, payload: object, type_spec: Type) -> SessionValue:
        """Sends a payload and returns its value. The leaves of a struct are sent in separate calls."""
        keeper = await self._sessions.get()
        return await self._made(owner, keeper, StreamingSession(keeper.session).put(payload, type_spec), type_spec)

    async def call(
        self, owner: VerbExecutor, function: SessionValue, argument: SessionValue | None, type_spec: Type
    ) -> SessionValue:
        made = function.session.call(function.id, None if argument is None else argument.id)
        try:
            return await self._made(owner, function.keeper, made, type_spec, (function, argument))
        except FedstackError as error:
            raise naming_intrinsics(error, function, argument) from error.__cause__

    async def struct(
        self, owner: VerbExecutor, names: Sequence[str | None], members: Sequence[SessionValue], type_spec: Type
    ) -> SessionValue:
        keeper = await self._sessions.get()
        made = keeper.session.struct([(name, member.id) for name, member in zip(names, members)])
        return await self._made(owner, keeper, made, type_spec, members)

    async def selection(self, owner: VerbExecutor, source: SessionValue, index: int, type_spec: Type) -> SessionValue:
        return await self._made(owner, source.keeper, source.session.selection(source.id, index), type_spec, source)

    async def fetch(self, value: SessionValue) -> object:
        """Computes a value and returns its payload."""
        work = self._moving(value.session).compute(value.id, value.type_signature)
        try:
            payload = await self._sessions.call(value.keeper, work)
        except FedstackError as error:
            raise naming_intrinsics(error, value) from error.__cause__
        value.has_run()
        return payload

    async def start(self, values: Sequence[SessionValue], waiting: int = 0) -> dict[SessionValue, Exception | None]:
        """Computes values of one session on the peer; see `RemoteExecutor.start`."""
        keeper = values[0].keeper if values else await self._sessions.get()
        by_id = {value.id: value for value in values}
        work = keeper.session.start({value.id: value.type_signature for value in values}, waiting)
        outcomes = await self._sessions.call(keeper, work)
        for value_id, error in outcomes.items():
            if error is None:
                by_id[value_id].has_run()
        return {by_id[value_id]: error for value_id, error in outcomes.items()}

    async def stop(self, values: Sequence[SessionValue]) -> None:
        """Stops the computation of values, which must all belong to the same session."""
        keeper = values[0].keeper
        await self._sessions.call(keeper, keeper.session.stop([value.id for value in values]))

    def check(self, value: SessionValue, role: str) -> None:
        """Checks that a value's session still exists.

        Raises:
          StaleSessionError: If the session has ended.
        """
        if value.keeper is not self._sessions.current:
            raise StaleSessionError(
                f"Expected a value of the current session at {self._sessions.stub.address} as {role}, found a value of "
                f"a session that has ended ({value.session.lost or 'the cardinalities have changed'}); create the "
                "value again"
            )

    def _moving(self, session: RemoteSession) -> MovesValues:
        return StreamingSession(session) if self._stream_structs else session

    async def _made(
        self, owner: VerbExecutor, keeper: SessionKeeper, made: Made, type_spec: Type, source: object = None
    ) -> SessionValue:
        value_id = made if isinstance(made, str) else await self._sessions.call(keeper, made)
        return SessionValue(owner, self, keeper, value_id, type_spec, source)
