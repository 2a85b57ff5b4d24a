"""Reads and updates a value that a server holds in a session, for whoever knows session and id."""

import attrs

from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import Type
from fedstack.errors import CarrierError
from fedstack.executors.remote.sessions.remote_transfers import evaluate, pack_value
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.peers.executor_stub import UPDATE, ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop

_MOST_SERVERS = 100


@attrs.define(eq=False)
class VariableServer:
    """A server that holds variables. Its coroutines run on the loop of its stub.

    Attributes:
      stub: Calls it.
      peer: What it says of itself; `None` until it has been asked.
    """

    stub: ExecutorStub
    peer: messages.HandshakeResponse | None = None

    @property
    def io(self) -> IoLoop:
        """The loop."""
        return self.stub.io

    async def handshake(self) -> messages.HandshakeResponse:
        """Returns what the server says of itself.

        Raises:
          CarrierError: If it holds no variables.
        """
        if self.peer is None:
            peer = await self.stub.handshake()
            if peer is None or UPDATE not in peer.features:
                raise CarrierError(
                    f"Expected a server that holds variables, found {self.stub.address}, which cannot; install this "
                    "release there"
                )
            self.peer = peer
        return self.peer


@attrs.frozen
class HeldVariable:
    """Which value it is. It has no credentials: whoever calls brings their own.

    Attributes:
      address: Where the server is.
      session: The id of the session there.
      value: The id of the value in it.
      type_signature: Its type.
    """

    address: str
    session: str
    value: str
    type_signature: Type

    async def read(self, server: VariableServer) -> object:
        """Returns the payload.

        Raises:
          StaleSessionError: If the variable is gone.
        """
        request = messages.EvaluateRequest(
            executor=plain.ExecutorId(id=self.session), value_ref=plain.ValueRef(id=self.value)
        )
        return await evaluate(server.stub, await server.handshake(), request, (), self.type_signature)

    async def update(self, server: VariableServer, how: "messages.UpdateRequest.How", payload: object) -> None:
        """Puts another value in place, in one step: no other update comes in between.

        Raises:
          StaleSessionError: If the variable is gone.
          WorkerUnavailableError: If the server cannot be reached; whether it has happened is not known then.
        """
        typed, segments = pack_value(payload, self.type_signature, await server.handshake(), server.stub)
        request = messages.UpdateRequest(
            executor=plain.ExecutorId(id=self.session), value_ref=plain.ValueRef(id=self.value), how=how, value=typed
        )
        await server.stub.update(request, segments)


_servers: SharedCache[str, VariableServer] = SharedCache(_MOST_SERVERS, _MOST_SERVERS)


def server_at(address: str) -> VariableServer:
    """Returns the server at an address, with a connection that all functions of this process share."""
    found = _servers.get(address)
    if found is None:
        [stub] = make_stubs(address, None)
        found = VariableServer(stub)
        _servers.put(address, found, 1)
    return found
