"""Records what an executor makes as ids of values that another process holds."""

from collections.abc import Sequence

from fedstack.computations.types.language import Type, computation_pb2
from fedstack.errors import StaleSessionError
from fedstack.executors.remote.remote_sessions import Made, MovesValues, RemoteSession, naming_the_worker
from fedstack.executors.remote.remote_values import Fetches, RemoteValue, naming_intrinsics
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.remote.streaming_session import StreamingSession


class RemoteRecorder:
    """Makes values at a peer. It checks no types: whoever asks says which type a value has.

    A function is sent at once. What is small and what is made of other values has its id at once too, and the peer gets
    to know of it with what needs it, if that is a fedstack worker.

    Args:
      sessions: Where the values are.
      stream_structs: Whether structs are sent and fetched leaf by leaf.
    """

    def __init__(self, sessions: SessionOpener, stream_structs: bool) -> None:
        self._sessions = sessions
        self._stream_structs = stream_structs

    async def embed(
        self, owner: Fetches, computation: computation_pb2.Computation, type_spec: Type, source: object
    ) -> RemoteValue:
        """Sends a computation.

        Args:
          owner: The executor that the value is of.
          computation: The computation.
          type_spec: Its type.
          source: What has to live as long as the value.

        Raises:
          CarrierError: If a leaf function cannot travel to the peer.
        """
        keeper = await self._sessions.get()
        with naming_the_worker(self._sessions.stub):
            portable = keeper.session.carriers.portable(computation)
        return await self._made(owner, keeper, keeper.session.put_computation(portable), type_spec, source)

    async def payload(self, owner: Fetches, payload: object, type_spec: Type) -> RemoteValue:
        """Sends a payload of a type."""
        keeper = await self._sessions.get()
        return await self._made(owner, keeper, self._moving(keeper.session).put(payload, type_spec), type_spec)

    async def call(
        self, owner: Fetches, function: RemoteValue, argument: RemoteValue | None, type_spec: Type
    ) -> RemoteValue:
        """Calls a function."""
        made = function.session.call(function.id, None if argument is None else argument.id)
        with naming_intrinsics(function, argument):
            return await self._made(owner, function.keeper, made, type_spec, (function, argument))

    async def struct(
        self, owner: Fetches, members: Sequence[tuple[str | None, RemoteValue]], type_spec: Type
    ) -> RemoteValue:
        """Packs values into a struct."""
        keeper = await self._sessions.get()
        made = keeper.session.struct([(name, member.id) for name, member in members])
        return await self._made(owner, keeper, made, type_spec, [member for _, member in members])

    async def selection(self, owner: Fetches, source: RemoteValue, index: int, type_spec: Type) -> RemoteValue:
        """Selects a member."""
        return await self._made(owner, source.keeper, source.session.selection(source.id, index), type_spec, source)

    async def fetch(self, value: RemoteValue) -> object:
        """Computes a value and returns its payload."""
        with naming_intrinsics(value):
            work = self._moving(value.session).compute(value.id, value.type_signature)
            return await self._sessions.call(value.keeper, work)

    def check_current(self, value: RemoteValue, role: str) -> None:
        """Checks that the session of a value is still there.

        Raises:
          StaleSessionError: If it has ended.
        """
        if value.keeper is not self._sessions.current:
            raise StaleSessionError(
                f"Expected a value of the current session at {self._sessions.stub.address} as {role}, found one of a "
                f"session that has ended: {value.session.lost or 'the cardinalities have changed'}; create it again"
            )

    def _moving(self, session: RemoteSession) -> MovesValues:
        return StreamingSession(session) if self._stream_structs else session

    async def _made(
        self, owner: Fetches, keeper: SessionKeeper, made: Made, type_spec: Type, source: object = None
    ) -> RemoteValue:
        value_id = made if isinstance(made, str) else await self._sessions.call(keeper, made)
        return RemoteValue(owner, keeper, value_id, type_spec, source)
