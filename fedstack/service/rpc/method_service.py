"""The RPC service: it runs computations that were registered under names, on the same core as an executor service."""

import functools
import time
from collections.abc import Callable, Mapping

from fedstack._version import __version__
from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.computations.leaves.work_scope import WorkKind, change_scope, current_scope
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory, Type
from fedstack.computations.values.federated_values import count_clients
from fedstack.contexts.invocation import tell_path
from fedstack.errors import FedstackError, WorkerUnavailableError
from fedstack.executors.base.verb_executor import Run, VerbExecutor
from fedstack.executors.concurrency.coroutines import run_at_once
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.worker.phase_pipeline import ARRAY_SPARE_BYTES
from fedstack.executors.worker.receiving import Received, receive
from fedstack.executors.worker.work import Work
from fedstack.foundations.error_text import counted
from fedstack.proto import methods_pb2
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.executor.held_values import prepared, written
from fedstack.service.executor.requests import control, read_value
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.host.limits import ServiceLimits, add_limits
from fedstack.service.rpc.method_table import Method, MethodTable
from fedstack.transport.grpc.credentials import ClientCredentials, check_client_credentials
from fedstack.transport.peers.executor_stub import PROTOCOL, check_protocol
from fedstack.transport.peers.method_stub import METHODS
from fedstack.transport.peers.methods import Answers, ExchangeMethod, Service
from fedstack.transport.peers.methods import Method as PeerMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

# High enough for calls whose functions wait for each other. Threads that only wait cost little.
_MOST_AT_ONCE = 256


class MethodService(Service):
    """Runs registered methods on the executors of a factory.

    Methods registered as `inline` run on the event loop. All other methods run as `Work`, which chooses the thread.
    Clients can only call registered methods, and cannot send code.

    Args:
      factory: Creates the executors, and is closed with the service. By default a local stack, which runs up to 256
        calls at a time.
      limits: The limits for clients.
      client_credentials: The credentials with which methods dial other servers, such as the owner of a variable; by
        default none.
    """

    def __init__(
        self,
        factory: ExecutorFactory | None = None,
        *,
        limits: ServiceLimits | None = None,
        client_credentials: ClientCredentials | None = None,
    ) -> None:
        check_client_credentials(client_credentials)
        self._core = ServiceCore(
            factory or local_executor_factory(),
            limits or ServiceLimits(),
            CarrierPolicy(),
            client_credentials=client_credentials,
        )
        self._table = MethodTable()
        self._threads = LeafThreads(_MOST_AT_ONCE, for_others=_MOST_AT_ONCE // 2)
        self._no_clients = ProgressCounts()
        self._runs: dict[Method, Run] = {}
        self._give_back = _keep
        self._draining = False

    def register(
        self,
        name: str,
        computation: object,
        inline: bool = False,
        *,
        parameter_types: ParameterTypes = None,
        result_type: object = None,
    ) -> None:
        """Registers a method; see `fedstack.service.rpc.Server.register`."""
        self._table.register(name, computation, inline, parameter_types, result_type)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the registered methods."""
        return tuple(method.signature.name for method in self._table)

    @property
    def methods(self) -> Mapping[str, Mapping[str, PeerMethod]]:
        """The methods of the gRPC service itself, `List` and `Invoke`."""
        listed = control(methods_pb2.ListMethodsRequest, self.list)
        return {METHODS: {"List": listed, "Invoke": ExchangeMethod(self.invoke)}}

    async def list(self, request: methods_pb2.ListMethodsRequest) -> methods_pb2.ListMethodsResponse:
        """Returns the descriptions of all registered methods.

        Raises:
          ProtocolVersionError: If the client uses a different version of the protocol.
        """
        check_protocol(request.protocol, request.version, "the client")
        limits = self._core.limits
        response = methods_pb2.ListMethodsResponse(
            protocol=PROTOCOL,
            version=__version__,
            max_value_bytes=limits.max_value_bytes,
            heartbeat_seconds=limits.heartbeat_seconds,
            uptime_seconds=time.monotonic() - self._core.started,
        )
        for method in self._table:
            described = response.method.add()
            described.CopyFrom(method.signature.described())
            if request.with_calls:
                described.calls.CopyFrom(method.calls.message())
        return response

    async def invoke(self, incoming: Incoming) -> Answers:
        """Calls a method: reads the argument, runs the method, and yields heartbeats and then the answer."""
        received = await receive(incoming, methods_pb2.InvokeRequest)
        request = received.message
        method = self._table.find(request.method)
        if self._draining:
            raise WorkerUnavailableError("The server is stopping and accepts no calls; call another server")
        if request.signature and request.signature != method.signature.digest:
            yield Parcel(methods_pb2.InvokeResponse(other=method.signature.described()).SerializeToString())
            return
        begun, failed = method.calls.began(), True
        try:
            payload = await self._argument(method, received)
            self._core.work_for(current_scope().origin, WorkKind.METHOD)
            packer = self._core.packer()
            progress = ProgressCounts() if method.has_clients else self._no_clients
            executor, give_back = self._executor_for(method, payload, progress)
            answer = self._answer(method, executor, payload, packer)
            del payload  # `answer` owns the payload, and releases it before writing the answer
            try:
                if method.inline and executor is self._at_hand:
                    header = run_at_once(answer)
                else:
                    work = Work(answer, self._threads if method.is_leaf and executor is self._at_hand else None)
                    between, seconds = self._core.limits.heartbeat_seconds, request.timeout_seconds
                    if not await work.ends_soon(between, seconds):
                        async for beat in work.beats(progress, between, seconds):
                            yield beat
                    header = work.result()
            finally:
                give_back()
            yield Parcel(header, packer.segments, self._core.limits.chunking.chunk_bytes)
            failed = False
        finally:
            method.calls.done(begun, failed)

    async def _answer(self, method: Method, executor: Executor, payload: object, packer: Packer) -> bytes:
        """Runs a method and returns the encoded answer. Large arrays go to the packer; errors name the executors."""
        try:
            run = self._runs.get(method) if executor is self._at_hand else None
            if run is None:
                run = prepared(executor, method.source)
                if executor is self._at_hand:
                    self._runs[method] = run
            found = await run(payload)
            del payload
            result = method.signature.function.result
            return await written(executor, found, result, functools.partial(_response, packer))
        except FedstackError as error:
            tell_path(error, executor)
            raise

    async def _argument(self, method: Method, received: Received[methods_pb2.InvokeRequest]) -> object:
        parameter = method.signature.function.parameter
        if parameter is None:
            await received.end()
            return None
        argument = received.message.argument
        payload, _, _ = await read_value(
            argument,
            lambda unpacker: (unpacker.unpack(argument, parameter), parameter),
            received,
            check=lambda size: self._core.admission.check_size(size, ARRAY_SPARE_BYTES),
            max_bytes=self._core.admission.max_bytes,
        )
        await received.end()
        return payload

    def _executor_for(
        self, method: Method, payload: object, progress: ProgressCounts
    ) -> tuple[Executor, Callable[[], None]]:
        """Returns an executor for a call, and a function that returns the executor to the pool."""
        parameter = method.signature.function.parameter
        clients = count_clients(payload, parameter) if method.has_clients and parameter is not None else None
        if clients is not None:
            self._core.admission.check_clients(clients)
            change_scope(progress=progress)
            return self._core.sessions.lend({CLIENTS: clients})
        at_hand = self._at_hand
        return self._core.sessions.lend({}) if at_hand is None else (at_hand, _keep)

    @functools.cached_property
    def _at_hand(self) -> VerbExecutor | None:
        """The executor for calls without clients, if it needs no event loop. It is kept until the service closes."""
        executor, give_back = self._core.sessions.lend({})
        if isinstance(executor, VerbExecutor) and executor.drives_inline:
            self._give_back = give_back
            return executor
        give_back()
        return None

    async def report(self, status: GetStatusResponse) -> None:
        status.abandoned_threads += self._core.abandoned.count
        add_limits(status, self._core.limits)

    def drain(self) -> None:
        """Rejects new calls; running calls continue."""
        self._draining = True

    async def close(self) -> None:
        """Ends all calls and closes the factory. Idempotent."""
        await self._core.close()
        self._give_back()
        self._give_back = _keep
        self._threads.close()

    def __repr__(self) -> str:
        return f"<MethodService of {counted(len(self._table), 'method')}>"


def _keep() -> None:
    """Does nothing. Stands in for the function that gives back an executor, because the service keeps this executor."""


def _response(packer: Packer, payload: object, type_spec: Type) -> bytes:
    response = methods_pb2.InvokeResponse()
    packer.pack(response.value, payload, type_spec, "result")
    return response.SerializeToString()
