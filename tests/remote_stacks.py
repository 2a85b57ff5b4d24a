"""The stacks with services in them that the conformance suites run over.

Most of the services run in this process, on the transport's loop, so leaf functions travel as handles and a test sees
what they do. Everything else is real: servers, sockets, certificates. To the processes of a pool functions travel by
name or by value, as they do in use.
"""

import atexit
import functools
import random
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from certificate_files import CertificateFiles, write_certificates

import fedstack
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory
from fedstack.executors import RemoteExecutor
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.executors.worker import phase_pipeline
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.cluster.server import Server, ServerConfig
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool
from fedstack.testing import FaultInjectingExecutor, FaultPlan
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.cluster_spec import ClusterSpec
from fedstack.transport.wire.connection_errors import BROKEN_OFF
from fedstack.transport.wire.frames import Chunking, Data, Header
from fedstack.transport.wire.parcels import Parcel, Piece

# Nothing is small, so all arrays travel beside their messages, in many frames.
CHUNKED = Chunking(large_bytes=1, chunk_bytes=997)
PLAIN = {"extensions": False, "keeps_handles": True}

_servers: list[Server] = []
_services: list[ExecutorService] = []


def start_servers() -> None:
    """Starts what the stacks share, so that no single test is blamed for it."""
    for target in (loopback_target(), mtls_target()):
        stub(target)
    cluster()
    service()


@functools.cache
def pool() -> WorkerPool:
    """Two worker processes, to which functions travel."""
    return local_worker_pool(2)


def new_pool_stub() -> ExecutorStub:
    """Returns a stub for the first process of the pool, which its user closes."""
    (first, _) = make_stubs(pool(), None)
    return first


@functools.cache
def pool_stub() -> ExecutorStub:
    return new_pool_stub()


def stop_servers() -> None:
    """Ends what `start_servers` started."""
    while _servers:
        _servers.pop().stop(0)
    while _services:
        io_loop.run_sync(_services.pop().close())
    if pool.cache_info().currsize:
        pool().close()
    # Whoever starts them again gets new ones.
    for made in (service, faulty_service, loopback_target, cluster, mtls_target, stub, pool, pool_stub):
        made.cache_clear()


def wait_for_no_sessions(seconds: float) -> None:
    """Returns when no service holds anything for a client any more.

    Raises:
      AssertionError: If one still does after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while left := [service for service in _services if service.sessions]:
        assert time.monotonic() < deadline, f"{left} still hold sessions after {seconds} s"
        threading.Event().wait(0.01)


def new_service(factory: ExecutorFactory | None = None, **options: Any) -> ExecutorService:
    _services.append(ExecutorService(factory or fedstack.local_executor_factory(), **options))
    return _services[-1]


@functools.cache
def service(chunking: Chunking | None = None) -> ExecutorService:
    return new_service(limits=ServiceLimits(chunking=chunking or Chunking()))


def start_server(credentials: ServerCredentials | None = None) -> str:
    """Starts the only task of a cluster."""
    server = Server({"worker": ["127.0.0.1:0"]}, config=ServerConfig(credentials))
    _servers.append(server)
    _services.append(server._executors)
    return server.target


@functools.cache
def loopback_target() -> str:
    return start_server()


@functools.cache
def cluster() -> ClusterSpec:
    """Two tasks."""
    return ClusterSpec({"worker": [loopback_target(), start_server()], "ps": []})


@functools.cache
def certificates() -> CertificateFiles:
    folder = Path(tempfile.mkdtemp(prefix="fedstack-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_certificates(folder)


@functools.cache
def mtls_target() -> str:
    files = certificates()
    credentials = ServerCredentials.from_files(
        certificate=files.server_cert,
        private_key=files.server_key,
        client_root_certificates=files.ca,
    )
    return start_server(credentials=credentials)


@functools.cache
def mtls_credentials() -> ClientCredentials:
    files = certificates()
    return ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )


@functools.cache
def stub(target: str) -> ExecutorStub:
    return ExecutorStub(FoundConnection(parse_target(target), credentials_for(target)))


def credentials_for(target: str) -> ClientCredentials | None:
    return mtls_credentials() if target == mtls_target() else None


def in_memory_stub(chunking: Chunking | None = None, **options: Any) -> ExecutorStub:
    return ExecutorStub(InMemoryConnection(service(chunking)), chunking=chunking, **options)


def remote(num_clients: int, stub: ExecutorStub, **options: Any) -> Executor:
    executor = RemoteExecutor(stub, **options)
    executor.set_cardinalities({CLIENTS: num_clients})
    return executor


def workers(targets: Sequence[str], **options: Any) -> ExecutorFactory:
    return fedstack.remote_executor_factory(list(targets), credentials=credentials_for(targets[0]), **options)


def in_memory_workers(count: int, stub_options: Mapping[str, Any] | None = None) -> ExecutorFactory:
    return fedstack.remote_executor_factory([in_memory_stub(**(stub_options or {})) for _ in range(count)])


@functools.cache
def faulty_service() -> ExecutorService:
    """A service whose clients are slow, fail and get lost; its plan goes on from test to test."""
    plan = FaultPlan(seed=11, latency=0.002, error_rate=0.03, drop_rate=0.03, failures_in_a_row=2)
    factory = fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))
    return new_service(factory)


class LossyConnection(InMemoryConnection):
    """A connection that breaks off before, amid or after every third phase, by seed.

    Args:
      service: The service.
      address: Its address, which is also the seed.
      hand_in_seconds: The time after which contributions are handed in; by default what the request says.
    """

    def __init__(self, service: ExecutorService, address: str, hand_in_seconds: float | None = None) -> None:
        super().__init__(service, address)
        self._random = random.Random(address)
        self._hand_in_seconds = hand_in_seconds

    async def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        is_phase = path.endswith("/RunPhase")
        breaks = self._random.random() if is_phase else 1.0
        pieces_left = self._random.choice([0, 0, 1, 2, 3, 5])
        if breaks < 0.15:
            raise BROKEN_OFF.error_at(self.address)
        if is_phase and self._hand_in_seconds is not None:
            request = PhaseRequest.FromString(parcel.header)
            request.hand_in_seconds = self._hand_in_seconds
            parcel = Parcel(request.SerializeToString(), parcel.segments, parcel.chunk_bytes)
        pieces = super().exchange(path, parcel)
        try:
            async for piece in pieces:
                if breaks < 0.3 and isinstance(piece, (Header, Data, Parcel)):
                    if not pieces_left:
                        raise BROKEN_OFF.error_at(self.address)
                    pieces_left -= 1
                yield piece
            if breaks < 0.3:
                raise BROKEN_OFF.error_at(self.address)
        finally:
            await pieces.aclose()


@functools.cache
def service_that_hands_in() -> ExecutorService:
    """A service whose clients take three milliseconds, and that hands in what they have contributed every two."""
    phase_pipeline._LEAST_SECONDS = 0.002  # for all services of this process; callers ask for longer times
    plan = FaultPlan(seed=11, latency=0.003)
    factory = fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))
    return new_service(factory)


def workers_that_hand_in() -> ExecutorFactory:
    """Three workers that are lost all the time, also after they have handed in what some clients have contributed."""
    return fedstack.remote_executor_factory(
        [ExecutorStub(LossyConnection(service_that_hands_in(), f"handing-in-{index}", 0.002)) for index in range(3)]
    )


def lossy_workers() -> ExecutorFactory:
    """Three workers, each of which is lost all the time, before its work and after it."""
    return fedstack.remote_executor_factory(
        [ExecutorStub(LossyConnection(service(), f"lossy-{index}")) for index in range(3)]
    )


def faulty_workers() -> ExecutorFactory:
    """One worker with faults and one without: with two, both would seldom succeed in the same attempt."""
    return fedstack.remote_executor_factory([ExecutorStub(InMemoryConnection(faulty_service())), in_memory_stub()])
