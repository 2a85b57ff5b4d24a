"""Reads and updates a value that a server holds in a session, for whoever knows session and id."""

import contextlib
from collections.abc import Generator
from typing import TypeAlias

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import Type
from fedstack.errors import CarrierError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.remote.sessions.remote_transfers import evaluate, pack_value
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import OF_WORKER

_MOST_SERVERS = 100
# So long a server that is away, and may be about to come back, holds up the functions that use its variables.
_CONNECT_SECONDS = 5.0


@attrs.define(eq=False)
class VariableServer:
    """A server that holds variables. Its coroutines run on the loop of its stub.

    Attributes:
      stub: Calls it.
      of_coordinator: Whether it is in the process of a coordinator, and dialled from another one.
      connect_seconds: How long to wait for it when it is not there.
      peer: What it says of itself; `None` until it has been asked.
    """

    stub: ExecutorStub
    of_coordinator: bool = False
    connect_seconds: float = _CONNECT_SECONDS
    peer: messages.HandshakeResponse | None = None

    @property
    def io(self) -> IoLoop:
        """The loop."""
        return self.stub.io

    @contextlib.contextmanager
    def called(self) -> Generator[None, None, None]:
        """Notices in a block with calls that the server has gone: the next caller waits for it to be back.

        Raises:
          StaleSessionError: If the server was started anew since.
        """
        try:
            yield
        except WorkerUnavailableError:
            self.peer = None
            raise
        except StaleSessionError as error:
            raise StaleSessionError(
                f"Expected a variable at {self.stub.address}, found that it is gone: the server was started anew, or "
                "the coordinator that made it has ended; make another one"
            ) from error

    async def handshake(self) -> messages.HandshakeResponse:
        """Returns what the server says of itself.

        Raises:
          CarrierError: If it holds no variables.
          WorkerUnavailableError: If it cannot be reached.
        """
        if self.peer is None:
            try:
                # It finds out what is wrong on the way there.
                await self.stub.connection.wait_ready(self.connect_seconds)
            except WorkerUnavailableError as error:
                if not self.of_coordinator:
                    raise
                raise WorkerUnavailableError(
                    f"Cannot use a variable that its coordinator's own process holds, at {self.stub.address}, which "
                    "only workers on the same machine reach; name a task of job 'ps' in the cluster, which then holds "
                    f"the variables, and see that the coordinator still runs ({error})"
                ) from error
            peer = await self.stub.handshake()
            if peer is None:
                raise CarrierError(
                    f"Expected a server that holds variables, found {self.stub.address}, which has "
                    "only an executor service; name a fedstack server"
                )
            self.peer = peer
        return self.peer


@attrs.frozen
class HeldVariable:
    """Which value it is. It has no credentials: whoever calls brings their own.

    Attributes:
      target: Where the server is, and whether it is dialled with TLS.
      session: The id of the session there.
      value: The id of the value in it.
      type_signature: Its type.
      is_own: Whether the server is in the process of the coordinator; it asks for no credentials, and gets none.
    """

    target: Target
    session: str
    value: str
    type_signature: Type
    is_own: bool

    async def read(self, server: VariableServer) -> object:
        """Returns the payload.

        Raises:
          StaleSessionError: If the variable is gone.
        """
        request = messages.EvaluateRequest(
            executor=plain.ExecutorId(id=self.session), value_ref=plain.ValueRef(id=self.value)
        )
        peer = await server.handshake()
        with server.called():
            return await evaluate(server.stub, peer, request, (), self.type_signature)

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
        with server.called():
            await server.stub.update(request, segments)


_Dialled: TypeAlias = "tuple[Target, bool, ClientCredentials | None]"
_servers: SharedCache[_Dialled, VariableServer] = SharedCache(_MOST_SERVERS, _MOST_SERVERS)


def server_of(held: HeldVariable) -> VariableServer:
    """Returns the server of a variable, to be dialled with what the service has that the current work runs in.

    All functions that run there share its connection.
    """
    from fedstack.transport.grpc.grpc_connection import GrpcConnection  # those who have variables alone need gRPC

    credentials: ClientCredentials | None = None if held.is_own else current_scope().client_credentials
    key = held.target, held.is_own, credentials
    found = _servers.get(key)
    if found is None:
        connection = GrpcConnection(held.target, credentials, words=OF_WORKER)
        found = VariableServer(ExecutorStub(connection), held.is_own)
        _servers.put(key, found, 1)
    return found
