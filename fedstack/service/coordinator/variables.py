"""Defines variables: state that closures and the coordinator's program change; a server holds it in a session."""

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
# How long functions wait for the server of their variables when it is away and may be about to return.
_CONNECT_SECONDS = 5.0


@attrs.define(eq=False)
class VariableServer:
    """A server that holds variables. Its coroutines run on the loop of its stub.

    Attributes:
      stub: Calls it.
      of_coordinator: Whether it runs in the process of a coordinator, and is dialled from another process.
      connect_seconds: How long to wait for it when it is not reachable.
      peer: What it reports about itself; `None` until it has been asked.
    """

    stub: ExecutorStub
    of_coordinator: bool = False
    connect_seconds: float = attrs.field(factory=lambda: _CONNECT_SECONDS)
    peer: messages.HandshakeResponse | None = None

    @property
    def io(self) -> IoLoop:
        """The loop."""
        return self.stub.io

    @contextlib.contextmanager
    def called(self) -> Generator[None, None, None]:
        """Notices during a block of calls that the server has gone: the next caller waits until it is back.

        Raises:
          StaleSessionError: If the server was restarted since.
        """
        try:
            yield
        except WorkerUnavailableError:
            self.peer, self.stub.is_reached = None, False
            raise
        except StaleSessionError as error:
            raise StaleSessionError(
                f"Expected a variable at {self.stub.address}, found that it is gone: the server was restarted, or "
                "the coordinator that created it has ended; create another one"
            ) from error

    async def handshake(self) -> messages.HandshakeResponse:
        """Returns what the server reports about itself.

        Raises:
          CarrierError: If it holds no variables.
          WorkerUnavailableError: If it cannot be reached.
        """
        if self.peer is None:
            try:
                # This finds out why the server cannot be reached.
                await reach(self.stub, self.connect_seconds)
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
class VariableHandle:
    """Identifies a variable. It has no credentials: callers bring their own.

    Attributes:
      target: The server's address, and whether it is dialled with TLS.
      session: The id of the session there.
      value: The id of the value in it.
      type_signature: Its type.
      is_own: Whether the server runs in the coordinator's process; it requires no credentials, and gets none.
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
        """Updates the value atomically: no other update comes in between.

        Raises:
          StaleSessionError: If the variable is gone.
          WorkerUnavailableError: If the server cannot be reached; whether the update happened is then unknown.
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
    """Returns the server of a variable, dialled with the credentials of the service that runs the current work.

    All functions that run in that service share the connection.
    """
    from fedstack.transport.grpc.grpc_connection import GrpcConnection  # only users of variables need gRPC

    credentials: ClientCredentials | None = None if held.is_own else current_scope().client_credentials
    key = held.target, held.is_own, credentials
    found = _servers.get(key)
    if found is None:
        connection = GrpcConnection(held.target, credentials, words=OF_WORKER)
        found = VariableServer(ExecutorStub(connection), held.is_own)
        _servers.put(key, found, 1)
    return found


class _VariableBase(abc.ABC):
    """A variable, and how to reach it."""

    def __init__(self, held: VariableHandle, server: VariableServer, owner: object = None) -> None:
        self._held = held
        self._server = server
        self._owner = owner  # keeps the variable alive

    @property
    def type_signature(self) -> Type:
        """The type of the value."""
        return self._held.type_signature

    def read_value(self) -> Any:
        """Returns the value.

        Raises:
          StaleSessionError: If the server that held it was restarted.
          WorkerUnavailableError: If the server cannot be reached.
        """
        return self._run(self._read())

    def assign(self, value: object) -> Any:
        """Replaces the value.

        Raises:
          TypeMismatchError: If the new value has another type.
        """
        return self._run(self._updated(messages.UpdateRequest.ASSIGN, value))

    def assign_add(self, value: object) -> Any:
        """Adds to the value atomically: concurrent additions are never lost."""
        return self._run(self._updated(messages.UpdateRequest.ADD, value))

    def assign_sub(self, value: object) -> Any:
        """Subtracts from the value atomically."""
        return self._run(self._updated(messages.UpdateRequest.SUBTRACT, value))

    @abc.abstractmethod
    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        """Runs work on the loop of the server's stub."""

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
    """A mutable value held by a server. Scheduled functions may use it, captured or as an argument.

    A closure that runs again because a worker was lost changes it again.
    """

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        return self._server.io.run_sync(work)


class AsyncVariable(_VariableBase):
    """A variable whose methods are awaited. A scheduled function uses it as a `Variable`."""

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        if current_scope().kind is not WorkKind.CLOSURE:
            return self._server.io.run(work)
        return self._server.io.run_sync(work)  # a function that executors of this process run: it cannot await


def _variable_at(target: Target, session: str, value: str, type_spec: bytes, is_own: bool) -> Variable:
    """Returns a variable in a process other than the one that created it."""
    declared = type_from_proto(computation_pb2.Type.FromString(type_spec))
    held = VariableHandle(target, session, value, declared, is_own)
    return Variable(held, server_of(held))
