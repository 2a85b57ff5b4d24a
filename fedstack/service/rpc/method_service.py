"""Serves methods: computations under names, which the stack of an executor service runs for whoever calls."""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Mapping

import attrs

from fedstack._version import __version__
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.computations.leaves.work_scope import current_scope, set_scope
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory, Type
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.federated_values import count_clients
from fedstack.contexts.invocation import tell_path, telling_path
from fedstack.errors import DeadlineExceededError, FedstackError, WorkerUnavailableError
from fedstack.executors.base.engines import LoadNeeded
from fedstack.executors.base.verb_executor import VerbExecutor, pull
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.concurrency.sync_driver import SyncDriver
from fedstack.executors.stacks.factories import local_executor_factory
from fedstack.executors.worker.phase_pipeline import ARRAY_SPARE_BYTES
from fedstack.executors.worker.received import Received, receive
from fedstack.foundations.error_text import counted
from fedstack.proto import methods_pb2
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.executor.requests import beats, control, read_value
from fedstack.service.executor.sessions import held_values
from fedstack.service.executor.sessions.service_core import ServiceCore
from fedstack.service.host.limits import ServiceLimits, add_limits
from fedstack.service.rpc.deadlines import within
from fedstack.service.rpc.method_table import Method, MethodTable
from fedstack.transport.grpc.credentials import ClientCredentials, check_client_credentials
from fedstack.transport.peers.executor_stub import PROTOCOL, check_protocol
from fedstack.transport.peers.loop_calls import arrival
from fedstack.transport.peers.method_stub import METHODS
from fedstack.transport.peers.methods import Answers, ExchangeMethod, Service
from fedstack.transport.peers.methods import Method as PeerMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

# As many calls may wait for each other inside of functions; threads that only wait cost little.
_MOST_AT_ONCE = 256
_SOON_SECONDS = 1.0
_LEAST_SECONDS = 1e-6


class MethodService(Service):
    """Runs registered methods on the executors of a factory.

    Clients can call what is registered and nothing else: no code travels.

    Args:
      factory: Makes the executors; it is closed with the service. By default a local stack that runs up to 256 calls at
        a time.
      limits: How much clients may have.
      client_credentials: What methods dial other servers with, such as the owner of a variable; by default nothing.
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
        self._give_back: Callable[[], None] | None = None
        self._table = MethodTable()
        self._here = SyncDriver(allow_loop=False)
        self._threads = LeafThreads(_MOST_AT_ONCE, for_others=_MOST_AT_ONCE // 2)
        self._functions: dict[Method, Callable[[object], object]] = {}
        self._no_clients = ProgressCounts()
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
        """The names of the methods."""
        return tuple(method.signature.name for method in self._table)

    @property
    def methods(self) -> Mapping[str, Mapping[str, PeerMethod]]:
        """The methods of the gRPC service."""
        listed = control(methods_pb2.ListMethodsRequest, self.list)
        return {METHODS: {"List": listed, "Invoke": ExchangeMethod(self.invoke)}}

    async def list(self, request: methods_pb2.ListMethodsRequest) -> methods_pb2.ListMethodsResponse:
        """Describes the methods.

        Raises:
          ProtocolVersionError: If the client speaks another version of the protocol.
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
        """Calls a method."""
        received = await receive(incoming, methods_pb2.InvokeRequest)
        request = received.message
        method = self._table.find(request.method)
        if self._draining:
            raise WorkerUnavailableError("Expected a server that takes calls, found one that is stopping; call another")
        if request.signature and request.signature != method.signature.digest:
            yield Parcel(methods_pb2.InvokeResponse(other=method.signature.described()).SerializeToString())
            return
        with method.calls.counted():
            payload = await self._argument(method, received)
            self._core.work_for(current_scope().origin, is_method=True)
            chunking, seconds = self._core.limits.chunking, request.timeout_seconds
            packer = Packer(chunking.large_bytes)
            at_hand = self._at_hand if method.is_leaf else None
            progress = ProgressCounts() if method.has_clients else self._no_clients
            given = deque([payload])  # whoever takes it out is the only one to have it
            del payload
            answer = functools.partial(self._answer, method, given, packer, progress)
            if method.inline:
                header = answer()
            else:
                if at_hand is None:
                    work = self._run(method, given.pop(), packer, progress)
                else:
                    # One function cannot be stopped in any case: on one thread from argument to answer it is soonest.
                    job = self._threads.submit(answer)
                    soon = min(_SOON_SECONDS, self._core.limits.heartbeat_seconds)
                    if seconds > 0.0:  # what is not, NaN too, is any time
                        soon = min(soon, seconds)
                        seconds = max(_LEAST_SECONDS, seconds - soon)
                    if await self._is_done(job, soon):
                        yield Parcel(job.result(), packer.segments, chunking.chunk_bytes)
                        return
                    work = self._outcome(job)
                allowed = request.timeout_seconds
                running = asyncio.ensure_future(within(seconds, work, lambda: _late(allowed)))
                async for beat in beats(running, progress, self._core.limits):
                    yield beat
                header = running.result()
            yield Parcel(header, packer.segments, chunking.chunk_bytes)

    def _answer(self, method: Method, given: "deque[object]", packer: Packer, progress: ProgressCounts) -> bytes:
        """Runs a method on this thread. Its coroutine is made here: one of a job that never begins would be left."""
        executor = self._at_hand if method.is_leaf else None
        if executor is None:
            return self._here.run(self._run(method, given.pop(), packer, progress), inline=True)
        try:
            run = self._function_of(method, executor)
            if run is not None:
                return _response(packer, run(given.pop()), method.signature.function.result)
        except FedstackError as error:
            tell_path(error, executor)
            raise
        return self._here.run(_computed(executor, method, given.pop(), packer), inline=True)

    def _function_of(self, method: Method, executor: VerbExecutor) -> Callable[[object], object] | None:
        """Returns what runs a method that is one function; `None` where the executor has to."""
        found = self._functions.get(method)
        if found is None and executor.engine is not None:
            if contains_sequence(method.signature.function.result):
                return None  # streams run code of users, as the executor has it
            try:
                found = executor.engine.on_this_thread(plans.plan(method.computation))
            except LoadNeeded:
                return None  # the way that the first call goes loads it on a thread
            if found is not None:
                self._functions[method] = found
        return found

    async def _argument(self, method: Method, received: Received[methods_pb2.InvokeRequest]) -> object:
        parameter = method.signature.function.parameter
        if parameter is None:
            await received.end()
            return None
        payload, _, _ = await read_value(
            received.message.argument,
            lambda: parameter,
            received,
            check=lambda size: self._core.admission.check_size(size, ARRAY_SPARE_BYTES),
            max_bytes=self._core.admission.max_bytes,
        )
        await received.end()
        return payload

    async def _run(self, method: Method, payload: object, packer: Packer, progress: ProgressCounts) -> bytes:
        """Runs a method and returns the message of the answer; its large arrays are in the packer."""
        parameter = method.signature.function.parameter
        clients = count_clients(payload, parameter) if method.has_clients and parameter is not None else None
        if clients is not None:
            self._core.admission.check_clients(clients)
            set_scope(attrs.evolve(current_scope(), progress=progress))
        executor, give_back = self._core.sessions.lend({} if clients is None else {CLIENTS: clients})
        try:
            if isinstance(executor, VerbExecutor):
                return await _computed(executor, method, payload, packer)
            with telling_path(executor):
                return await self._by_verbs(executor, method, payload, packer)
        finally:
            give_back()

    @functools.cached_property
    def _at_hand(self) -> VerbExecutor | None:
        """The executor without clients, lent until the end, if it runs functions on the thread that asks for it."""
        executor, give_back = self._core.sessions.lend({})
        if isinstance(executor, VerbExecutor) and executor.drives_inline:
            self._give_back = give_back
            return executor
        give_back()
        return None

    async def _is_done(self, job: Job[bytes], seconds: float | None = None) -> bool:
        """Waits for work on a thread, so many seconds at most, and gives it up if nobody waits any more."""
        try:
            return await arrival(job, seconds)
        except asyncio.CancelledError:
            self._threads.give_up(job)
            raise

    async def _outcome(self, job: Job[bytes]) -> bytes:
        await self._is_done(job)
        return job.result()

    async def _by_verbs(self, executor: Executor, method: Method, payload: object, packer: Packer) -> bytes:
        """Runs a method on an executor of another origin."""
        parameter = method.signature.function.parameter
        function = await held_values.create_computation(executor, method.computation)
        argument = None
        if parameter is not None:
            argument = await held_values.create_known(executor, payload, parameter)
        value = await held_values.create_call(executor, function, argument)
        return await held_values.written(value, await pull(value), functools.partial(_response, packer))

    async def report(self, status: GetStatusResponse) -> None:
        status.abandoned_threads += self._core.abandoned.count
        add_limits(status, self._core.limits)

    def drain(self) -> None:
        """Takes no new calls; those that run go on."""
        self._draining = True

    async def close(self) -> None:
        """Ends all calls and closes the factory. Idempotent."""
        await self._core.close()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None
        self._here.close()
        self._threads.close()

    def __repr__(self) -> str:
        return f"<MethodService of {counted(len(self._table), 'method')}>"


async def _computed(executor: VerbExecutor, method: Method, payload: object, packer: Packer) -> bytes:
    """Runs a method on an executor of ours."""
    result = method.signature.function.result
    try:
        found = await executor.invoke(method.source, payload)
        del payload
        write = functools.partial(_response, packer, found, result)
        if contains_sequence(result):  # streams run code of users: where that runs
            return await executor.finish(write, result)
        return write() if is_quick(found, result) else await off_loop(write)
    except FedstackError as error:
        tell_path(error, executor)
        raise


def _late(seconds: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The call had {seconds:.3g} seconds, and took longer; what it did until then is done; allow more time"
    )


def _response(packer: Packer, payload: object, type_spec: Type) -> bytes:
    response = methods_pb2.InvokeResponse()
    packer.pack(response.value, payload, type_spec, "result")
    return response.SerializeToString()
