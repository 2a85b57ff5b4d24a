"""Defines variables: state that closures and the coordinator's program can change.

A server stores the value of a variable in a session.
"""

import abc
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any, TypeAlias

import attrs

from fedstack.computations.leaves.work_scope import WorkKind, current_scope
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.values import normalize
from fedstack.errors import CarrierError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.remote.remote_transfers import evaluate, pack_value
from fedstack.foundations.caches import SharedCache
from fedstack.membership.reaching import reach
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import OF_WORKER

_MOST_SERVERS = 100
# How long functions wait for the server of a variable while the server is not reachable.
_CONNECT_SECONDS = 5.0


@attrs.define(eq=False)
class VariableServer:
    """A client of a server that holds variables. Its coroutines run on the loop of its stub.

    Attributes:
      stub: The stub that calls the server.
      of_coordinator: Whether the server runs in a coordinator's process and is dialed from another process.
      connect_seconds: How long to wait for the server while it is not reachable, in seconds.
      peer: The server's handshake response; `None` before the first handshake and after the server was lost.
    """

    stub: ExecutorStub
    of_coordinator: bool = False
    connect_seconds: float = attrs.field(factory=lambda: _CONNECT_SECONDS)
    peer: messages.HandshakeResponse | None = None

    @property
    def io(self) -> IoLoop:
        """The event loop of the stub."""
        return self.stub.io

    @contextlib.contextmanager
    def called(self) -> Generator[None, None, None]:
        """Wraps a block of calls to the server, and records a loss of the server during the block.

        After a loss, the next handshake waits until the server is reachable again.

        Raises:
          StaleSessionError: If the server has been restarted since the variable was created.
        """
        try:
            yield
        except WorkerUnavailableError:
            self.peer, self.stub.is_reached = None, False
            raise
        except StaleSessionError as error:
            raise StaleSessionError(
                f"The variable on the server at {self.stub.address} is gone: the server was restarted, or the "
                "coordinator that created the variable has ended; create a new variable"
            ) from error

    async def handshake(self) -> messages.HandshakeResponse:
        """Returns the server's handshake response; calls the server only if no response is known.

        Raises:
          CarrierError: If the server does not support variables.
          WorkerUnavailableError: If the server cannot be reached.
        """
        if self.peer is None:
            try:
                # If the server cannot be reached, this raises an error with the reason.
                await reach(self.stub, self.connect_seconds)
            except WorkerUnavailableError as error:
                if not self.of_coordinator:
                    raise
                raise WorkerUnavailableError(
                    f"A variable cannot be reached. It is stored at {self.stub.address}, in the process of its "
                    "coordinator, which only workers on the same machine can reach; check that the coordinator is "
                    f"still running, or add to the cluster a job 'ps', whose tasks then store variables ({error})"
                ) from error
            peer = await self.stub.handshake()
            if peer is None:
                raise CarrierError(
                    f"The server at {self.stub.address} does not support variables: it has only a plain executor "
                    "service; use the address of a fedstack server"
                )
            self.peer = peer
        return self.peer


@attrs.frozen
class VariableHandle:
    """Identifies a variable. The handle contains no credentials, so callers use their own.

    Attributes:
      target: The server's address, and whether to dial it with TLS.
      session: The id of the server's session that contains the value.
      value: The id of the value in the session.
      type_signature: The type of the value.
      is_own: Whether the server runs in the coordinator's process. Such a server is dialed without credentials.
    """

    target: Target
    session: str
    value: str
    type_signature: Type
    is_own: bool

    async def read(self, server: VariableServer) -> object:
        """Returns the payload of the variable's current value.

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
        """Updates the value atomically.

        Args:
          server: The variable's server.
          how: Whether to assign, add or subtract the payload.
          payload: The operand.

        Raises:
          StaleSessionError: If the variable is gone.
          WorkerUnavailableError: If the server cannot be reached. The update may have been applied nevertheless.
        """
        request = messages.UpdateRequest(
            executor=plain.ExecutorId(id=self.session), value_ref=plain.ValueRef(id=self.value), how=how
        )
        segments = pack_value(request.value, payload, self.type_signature, await server.handshake(), server.stub)
        with server.called():
            await server.stub.update(request, segments)


_Dialled: TypeAlias = "tuple[Target, bool, ClientCredentials | None]"
_servers: SharedCache[_Dialled, VariableServer] = SharedCache(_MOST_SERVERS, _MOST_SERVERS)


def server_of(held: VariableHandle) -> VariableServer:
    """Returns the client of a variable's server.

    The client uses the credentials of the service that runs the current function. All functions in that service share
    the connection.
    """
    from fedstack.transport.stream.found_connection import FoundConnection  # only users of variables need gRPC

    credentials: ClientCredentials | None = None if held.is_own else current_scope().client_credentials
    key = held.target, held.is_own, credentials
    found = _servers.get(key)
    if found is None:
        connection = FoundConnection(held.target, credentials, words=OF_WORKER)
        found = VariableServer(ExecutorStub(connection), held.is_own)
        _servers.put(key, found, 1)
    return found


class _VariableBase(abc.ABC):
    """The base class of variables. A variable consists of a handle and the client of the variable's server."""

    def __init__(self, held: VariableHandle, server: VariableServer, owner: object = None) -> None:
        self._held = held
        self._server = server
        self._owner = owner  # keeps the variable alive

    @property
    def type_signature(self) -> Type:
        """The type of the value."""
        return self._held.type_signature

    def read_value(self) -> Any:
        """Returns the current value.

        Raises:
          StaleSessionError: If the server that held the value was restarted.
          WorkerUnavailableError: If the server cannot be reached.
        """
        return self._run(self._read())

    def assign(self, value: object) -> Any:
        """Replaces the value.

        Raises:
          TypeMismatchError: If the new value has a different type.
        """
        return self._run(self._updated(messages.UpdateRequest.ASSIGN, value))

    def assign_add(self, value: object) -> Any:
        """Adds to the value atomically, so that concurrent additions are never lost."""
        return self._run(self._updated(messages.UpdateRequest.ADD, value))

    def assign_sub(self, value: object) -> Any:
        """Subtracts from the value atomically."""
        return self._run(self._updated(messages.UpdateRequest.SUBTRACT, value))

    @abc.abstractmethod
    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        """Runs work on the event loop of the server's stub."""

    async def _read(self) -> object:
        return to_result(await self._held.read(self._server), self.type_signature)

    def _updated(self, how: "messages.UpdateRequest.How", value: object) -> Coroutine[Any, Any, None]:
        payload = normalize(value, self.type_signature, "value")
        return self._held.update(self._server, how, payload)

    def __reduce__(self) -> tuple[object, ...]:
        held, written = self._held, self.type_signature.to_proto().SerializeToString()
        return _variable_at, (held.target, held.session, held.value, written, held.is_own)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self.type_signature} at {self._held.target}>"


class Variable(_VariableBase):
    """A mutable value on a server.

    Scheduled functions can receive a variable as an argument or capture it. If a closure runs again because a worker
    was lost, the closure's updates are applied again.
    """

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        return self._server.io.run_sync(work)


class AsyncVariable(_VariableBase):
    """A variable whose methods return awaitables. Scheduled functions receive it as a `Variable`."""

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        if current_scope().kind is not WorkKind.CLOSURE:
            return self._server.io.run(work)
        return self._server.io.run_sync(work)  # called by a function on an executor of this process, which cannot await


def _variable_at(target: Target, session: str, value: str, type_spec: bytes, is_own: bool) -> Variable:
    """Restores a variable from its pickled form."""
    declared = type_from_proto(computation_pb2.Type.FromString(type_spec))
    held = VariableHandle(target, session, value, declared, is_own)
    return Variable(held, server_of(held))
