"""Creates the variables of a coordinator, on the tasks of job `ps` or on a server in the coordinator's process."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import Type, infer_type
from fedstack.computations.values.ownership import snapshot_of
from fedstack.computations.values.values import normalize
from fedstack.errors import ClosedError, FedstackError, InvalidValueError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.base.verb_executor import to_declared_type
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.remote.remote_values import SessionValue
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.variables import VariableHandle, VariableServer
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop, io_loop
from fedstack.transport.wire.addresses import Target, resolve_targets
from fedstack.transport.wire.cluster_spec import ClusterJob, ClusterSpec

_JOB = "ps"
_MORE_ATTEMPTS = 2  # the first attempt may lose the connection, and the second may find that the server was restarted


@attrs.define(eq=False)
class _Holder:
    """A server that holds variables for one coordinator.

    Attributes:
      target: The address of the server.
      server: The client of the server.
      executor: The executor that holds the variables; replaced after a restart of the server.
    """

    target: Target
    server: VariableServer
    executor: RemoteExecutor

    async def keep(self, payload: object, type_spec: Type) -> SessionValue:
        """Stores a value on the server, and returns a reference to the stored value.

        Raises:
          WorkerUnavailableError: If the server cannot be reached.
        """
        for _ in range(_MORE_ATTEMPTS):
            await self.server.handshake()  # waits for a server that was lost to be reachable again
            executor = self.executor
            try:
                with self.server.called():
                    return await _kept(executor, payload, type_spec)
            except StaleSessionError:  # the server was restarted, and its values are gone
                if self.executor is executor:
                    self.executor = _executor_at(self.server.stub)
                    executor.close()
            except WorkerUnavailableError:
                pass
            except ClosedError:
                if self.executor is executor:
                    raise
                # another caller has already noticed the restart
        await self.server.handshake()
        return await _kept(self.executor, payload, type_spec)


async def _kept(executor: RemoteExecutor, payload: object, type_spec: Type) -> SessionValue:
    value = await executor.create_known(payload, type_spec)
    assert isinstance(value, SessionValue)
    for error in (await executor.start([value])).values():
        if error is not None:
            raise error
    return value


def _executor_at(stub: ExecutorStub) -> RemoteExecutor:
    executor = RemoteExecutor(stub)
    executor.set_cardinalities({})
    return executor


class VariableOwner:
    """Creates variables, distributing them over its servers in turn. Its coroutines run on the transport's loop.

    Args:
      workers: The `workers` argument of the coordinator. A cluster may have a job `ps`, whose tasks hold variables.
      credentials: The certificates and the token for job `ps`.
      loop: The loop of the coordinator's driver.
      connect_seconds: How long to wait, in seconds, for a task of job `ps` that is not running yet.
      transport: How to reach the tasks of job `ps`.

    Attributes:
      is_used: Whether a variable has ever been created. If not, `end` need not be called.
    """

    def __init__(
        self,
        workers: object,
        credentials: ClientCredentials | None,
        loop: IoLoop,
        connect_seconds: float,
        transport: Transport = "auto",
    ) -> None:
        spec = workers.spec if isinstance(workers, ClusterJob) else workers
        self._job = spec.job(_JOB) if isinstance(spec, ClusterSpec) and _JOB in spec.jobs else None
        self._credentials = credentials
        self._transport: Transport = transport
        self._loop = loop
        self._connect_seconds = connect_seconds
        self._holders: list[_Holder] = []
        self._next = itertools.count()
        self._opening = asyncio.Lock()
        self._stop_own: Callable[[float], Awaitable[None]] | None = None
        self.is_used = False
        self._closed = False

    def make(
        self, initial_value: object, type_spec: object
    ) -> Coroutine[Any, Any, tuple[VariableHandle, VariableServer, object]]:
        """Creates a variable.

        Args:
          initial_value: The initial value, or a function that returns it.
          type_spec: The type of the value, or `None` to infer the type.

        Returns:
          The handle to the variable, its server, and an object that keeps the variable alive.

        Raises:
          TypeMismatchError: If the initial value does not have the type `type_spec`.
          InvalidValueError: If the language cannot infer the type, or if the workers are simulated.
        """
        if self._loop is not io_loop:
            raise InvalidValueError(
                "Simulated workers cannot use variables, because their functions cannot wait for a server; schedule "
                "functions that take the state as an argument and return the new state"
            )
        if callable(initial_value):
            initial_value = initial_value()
        declared = _type_of(initial_value) if type_spec is None else to_declared_type(type_spec)
        payload = normalize(initial_value, declared, "initial_value")
        keep = snapshot_of(declared)
        return self._make(payload if keep is None else keep(payload, None), declared)

    async def _make(self, payload: object, type_spec: Type) -> tuple[VariableHandle, VariableServer, object]:
        self.is_used = True
        async with self._opening:
            if self._closed:
                raise ClosedError("The coordinator is closed; create a new coordinator")
            if not self._holders:
                await self._open()
        holder = self._holders[next(self._next) % len(self._holders)]
        value = await holder.keep(payload, type_spec)
        held = VariableHandle(holder.target, value.session.executor.id, value.id, type_spec, self._job is None)
        return held, holder.server, value

    async def _open(self) -> None:
        targets = await self._own_server() if self._job is None else self._job.resolve()
        credentials = None if self._job is None else self._credentials
        for target in targets:
            # The credentials that functions on workers use do not tell them whether to dial this server with TLS.
            target = attrs.evolve(target, secure=(credentials or ClientCredentials()).secures(target))
            [stub] = make_stubs(target, credentials, self._transport)
            server = VariableServer(stub, connect_seconds=self._connect_seconds)
            self._holders.append(_Holder(target, server, _executor_at(stub)))

    async def _own_server(self) -> Sequence[Target]:
        from fedstack.service.executor.executor_service import ExecutorService
        from fedstack.service.host.host import GrpcServer  # only users of variables need gRPC

        server = GrpcServer([ExecutorService(local_executor_factory())], reflection=False)
        await server.start()
        self._stop_own = server.stop
        return resolve_targets(server.target)

    async def end(self) -> None:
        """Drops all variables. Never raises."""
        self._closed = True
        async with self._opening:
            holders, self._holders = self._holders, []
        for holder in holders:
            await holder.executor.end()  # before the server stops, since it waits for clients whose values it holds
            with contextlib.suppress(FedstackError):
                await holder.server.stub.close()
        if self._stop_own is not None:
            await self._stop_own(0.0)

    def __repr__(self) -> str:
        return f"<VariableOwner at {len(self._holders)} servers>"


def _type_of(initial_value: object) -> Type:
    reason = ""
    try:
        declared = infer_type(initial_value)
    except (TypeError, ValueError, NotImplementedError) as error:
        declared, reason = None, f": {error}"
    if declared is None:
        raise InvalidValueError(
            f"Expected an initial value whose type can be inferred, found {describe(initial_value)}; pass "
            f"type_spec{reason}"
        )
    return declared
