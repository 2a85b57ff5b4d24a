"""Data workers serve at once, and attend at their dispatcher as long as they are there."""

import gc
import threading
import time
from pathlib import Path

import attrs
import federated_language as fl
import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from certificate_files import CertificateFiles
from data_reading import read, whole
from free_ports import free_port

from fedstack import ClientCredentials
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import AddressError, AuthenticationError, InvalidValueError, WorkerUnavailableError
from fedstack.service import ServerCredentials
from fedstack.service.data import Dataset, WorkerConfig, WorkerServer
from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig, DispatchServer
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.listening import GRPC, LOCAL
from fedstack.service.host.server_thread import ServerThread

WALL = 20.0
INT = fl.TensorType(np.int64)


@pytest.mark.parametrize("protocol", [GRPC, LOCAL])
def test_a_worker_attends_with_its_address_and_leaves_when_it_stops(
    protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    worker = start_worker(protocol)
    address = catalogue.first.result(WALL)
    assert worker.target == (address if protocol == LOCAL else f"grpc://{address}")
    worker.stop()
    catalogue.left.result(WALL)
    ids = {request.worker.worker for request in catalogue.attended}
    assert [len(id) for id in ids] == [16]
    assert catalogue.attended[-1].leaves
    assert not any(request.leaves for request in catalogue.attended[:-1])


def test_a_worker_starts_without_its_dispatcher_and_attends_when_that_is_there() -> None:
    address = free_address()
    begun = time.monotonic()
    with WorkerServer(dispatcher_address=address, port=0) as worker:
        assert time.monotonic() - begun < WALL / 2  # and does not wait for anything
        catalogue = Catalogue()
        with served_at(address, catalogue):
            assert f"grpc://{catalogue.first.result(WALL)}" == worker.target


def test_a_worker_that_waits_for_its_dispatcher_says_in_time_that_it_is_not_there() -> None:
    address = free_address()
    ticks = Ticks()
    with pytest.raises(WorkerUnavailableError, match=rf"The dispatcher at {address} did not register.*refuse"):
        WorkerServer(WorkerConfig(address, dispatcher_timeout_ms=1000))
    assert ticks.stop() > 3  # of fifty: nobody was held up by it, though the machine may be busy


def test_a_worker_attends_again_where_the_dispatcher_was_started_anew() -> None:
    address = free_address()
    first, second = Catalogue(), Catalogue(number=2)
    with served_at(address, first):
        worker = WorkerServer(WorkerConfig(address, heartbeat_interval_ms=20))
        first.first.result(WALL)
    digest = second.register(Dataset.range(3))
    with served_at(address, second), worker:
        assert f"grpc://{second.first.result(WALL)}" == worker.target
        assert read(worker.target, whole(digest), INT) == [0, 1, 2]


def test_a_definition_is_waited_for_while_the_dispatcher_is_away() -> None:
    address, catalogue = free_address(), Catalogue()
    digest = catalogue.register(Dataset.range(3))
    with WorkerServer(WorkerConfig(address)) as worker:
        starting = threading.Timer(0.3, lambda: servers.append(served_at(address, catalogue)))
        servers: list[ServerThread] = []
        starting.start()
        try:
            assert read(worker.target, whole(digest), INT) == [0, 1, 2]
        finally:
            starting.join()
            servers[0].stop()


def test_a_dispatcher_that_refuses_is_an_error_at_once_where_the_worker_waits(
    dispatcher: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    catalogue.refusal = InvalidValueError("Expected one of the workers that may attend, found another")
    with pytest.raises(InvalidValueError, match="one of the workers that may attend"):
        start_worker(dispatcher_timeout_ms=1000 * WALL)
    worker = start_worker(heartbeat_interval_ms=10)
    catalogue.refusal = None
    assert f"grpc://{catalogue.first.result(WALL)}" == worker.target


def test_a_worker_can_have_another_address_than_where_it_listens(
    catalogue: Catalogue, start_worker: StartWorker
) -> None:
    worker = start_worker(worker_address="localhost:%port%")
    assert catalogue.first.result(WALL) == f"localhost:{worker.target.rpartition(':')[2]}"


def test_a_worker_attends_at_a_real_dispatcher_in_either_form() -> None:
    for protocol in (GRPC, LOCAL):
        with DispatchServer(DispatcherConfig(protocol=protocol)) as dispatcher:
            with WorkerServer(WorkerConfig(dispatcher.target, protocol=protocol, dispatcher_timeout_ms=1000 * WALL)):
                pass


def test_a_worker_reads_over_mutual_tls_with_tokens_and_dials_with_its_own(
    files: CertificateFiles, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    own = ClientCredentials.from_files(
        root_certificates=files.ca,
        certificate=files.client_cert,
        private_key=files.client_key,
        token_file=tmp_path / "token",
    )
    catalogue = Catalogue()
    digest = catalogue.register(Dataset.range(3))
    tokens = ServerCredentials.from_files(token_file=tmp_path / "token").tokens
    with ServerThread(GrpcServer([catalogue], credentials=attrs.evolve(theirs, tokens=tokens))) as dispatcher:
        config = WorkerConfig(
            f"grpcs://{dispatcher.target}", credentials=theirs, token_file=tmp_path / "token", client_credentials=own
        )
        with WorkerServer(config) as worker:
            assert worker.target.startswith("grpcs://")
            assert f"grpcs://{catalogue.first.result(WALL)}" == worker.target
            assert read(worker.target, whole(digest), INT, own) == [0, 1, 2]
            for bad in (None, attrs.evolve(own, token="guess", files=None), ClientCredentials(token="secret")):
                with pytest.raises(AuthenticationError):
                    read(worker.target, whole(digest), INT, bad)
        with pytest.raises(AuthenticationError):
            WorkerServer(attrs.evolve(config, client_credentials=None, dispatcher_timeout_ms=1000 * WALL))


def test_a_configuration_that_cannot_be_meant_is_refused(files: CertificateFiles) -> None:
    with pytest.raises(InvalidValueError, match="Expected the address of a dispatcher, found ''"):
        WorkerServer()
    with pytest.raises(InvalidValueError, match="Expected an address with a port"):
        WorkerServer(dispatcher_address="nowhere")
    with pytest.raises(InvalidValueError, match='Expected the protocol "grpc", or "grpc\\+local"'):
        WorkerServer(dispatcher_address="localhost:1", protocol="http")
    with pytest.raises(InvalidValueError, match="config or individual attributes such as port, found both"):
        WorkerServer(WorkerConfig("localhost:1"), port=1)
    with pytest.raises(InvalidValueError, match="Expected a worker_address"):
        WorkerConfig("localhost:1", host="0.0.0.0")
    with pytest.raises(InvalidValueError, match="heartbeat_interval_ms"):
        WorkerConfig("localhost:1", heartbeat_interval_ms=-1)
    with pytest.raises(InvalidValueError, match="Expected TLS for an address that other machines can reach"):
        WorkerServer(WorkerConfig("localhost:1", "me:1", host="0.0.0.0"))
    theirs = ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)
    config = WorkerConfig(
        "localhost:1", "me:1", host="0.0.0.0", credentials=theirs, policy=CarrierPolicy(python_code=True)
    )
    with pytest.raises(InvalidValueError, match="would run arbitrary code for clients without certificates"):
        WorkerServer(config)
    with pytest.raises(InvalidValueError, match="Expected client_credentials to be a fedstack.ClientCredentials"):
        WorkerConfig("localhost:1", client_credentials=theirs)  # type: ignore[arg-type]


def test_a_port_that_is_in_use_is_an_error(start_worker: StartWorker) -> None:
    port = int(start_worker().target.rpartition(":")[2])
    with pytest.raises(AddressError, match=str(port)):
        start_worker(port=port)


def test_a_worker_that_nobody_has_any_more_is_gone(catalogue: Catalogue, dispatcher: str) -> None:
    worker = WorkerServer(dispatcher_address=dispatcher)
    catalogue.first.result(WALL)
    del worker
    gc.collect()
    catalogue.left.result(WALL)


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def served_at(address: str, catalogue: Catalogue) -> ServerThread:
    """Returns a server that has been started."""
    server = ServerThread(GrpcServer([catalogue], port=int(address.rpartition(":")[2])))
    server.start()
    return server


class Ticks:
    """Counts while nobody keeps Python's lock."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while not self._stop.wait(0.02):
            self._number += 1

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self._number
