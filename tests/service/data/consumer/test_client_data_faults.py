"""A round goes on when servers of its data service are lost, and what cannot be read says why."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from calling import WALL
from certificate_files import write_certificates
from client_service import DataService, as_if_elsewhere, data_service
from serving import served

import fedstack
from fedstack.errors import AuthenticationError, ClosedError, InvalidValueError, RemoteError, ResourceLimitError
from fedstack.program import DatasetDataSource
from fedstack.service import ServerCredentials
from fedstack.service.data import (
    Dataset,
    DataWorkerLimits,
    DispatcherConfig,
    DispatchServer,
    WorkerConfig,
    WorkerServer,
    register_dataset,
)
from fedstack.service.data.consumer.client_references import RegisteredClients
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.transport.grpc.credentials import ClientCredentials

CLIENTS = 300
ROW = fl.SequenceType((np.float32, [10_000]))


def rows(clients: int = CLIENTS) -> Any:
    """Returns a dataset with a row of 40 KB for each client, three of the first."""
    owners = np.concatenate([np.arange(clients), [0, 0]])
    draw = np.random.default_rng(1)
    return Dataset.from_arrays({"who": owners, "row": draw.random((len(owners), 10_000), np.float32)}).by_client("who")


LOCAL = rows()
MEMBER = fl.SequenceType(fl.to_type([("row", (np.float32, [10_000]))]))


def total(before_client: Callable[[int], None] = lambda done: None) -> Any:
    """Returns a computation that adds up the rows of all clients, and calls a function before each client."""
    done = iter(range(10 * CLIENTS))

    @fedstack.python_computation([MEMBER], np.float32)
    def of_one(data):
        before_client(next(done))
        return np.float32(sum(element["row"].sum() for element in data))

    @fl.federated_computation(fl.FederatedType(MEMBER, fl.CLIENTS))
    def of_all(data):
        return fl.federated_sum(fl.federated_map(of_one, data))

    return of_all


@pytest.fixture
def service() -> Iterator[DataService]:
    with data_service() as found, as_if_elsewhere():
        register_dataset(found.target, LOCAL, dataset_id="rows")
        yield found


@pytest.fixture
def source(service: DataService) -> Iterator[DatasetDataSource]:
    with DatasetDataSource(service.target, "rows") as found:
        yield found


def at(client: int, action: Callable[[], object]) -> Callable[[int], None]:
    return lambda done: action() and None if done == client else None


@pytest.mark.usefixtures("fedstack_context")
def test_what_a_lost_data_worker_had_is_read_from_another(service: DataService, source: DatasetDataSource) -> None:
    stop = at(CLIENTS // 3, lambda: service.workers[0].stop(0))
    assert total(stop)(source.iterator().select()) == total()(LOCAL.sample(CLIENTS, 0)[:0] + list(LOCAL.values()))


@pytest.mark.usefixtures("fedstack_context")
def test_the_elements_of_one_client_go_on_at_another_worker(service: DataService, source: DatasetDataSource) -> None:
    many = Dataset.from_arrays({"who": np.zeros(2000, np.int64), "row": np.random.random((2000, 1000))}).by_client(
        "who"
    )
    register_dataset(service.target, many, dataset_id="many")
    with DatasetDataSource(service.target, "many") as source:
        (reference,) = source.select([0])
        elements = iter(reference)
        found = [next(elements)]
        (reader,) = source._clients._workers._readers.values()
        (read_from,) = (worker for worker in service.workers if reader._stub.address in worker.target)
        read_from.stop(0)
        found += elements
    np.testing.assert_equal(found, list(many[0]))


@pytest.mark.long
@pytest.mark.usefixtures("fedstack_context")
def test_a_dispatcher_that_is_away_holds_up_no_round(service: DataService, source: DatasetDataSource) -> None:
    expected = total()(list(LOCAL.values()))
    stop = at(CLIENTS // 3, lambda: service.dispatcher.stop(0))
    assert total(stop)(source.iterator().select()) == expected
    time.sleep(2.1)  # until its workers would be asked for again
    assert total()(source.iterator().select()) == expected


def test_workers_are_waited_for_and_who_waits_too_long_is_told(service: DataService) -> None:
    with data_service(0) as empty, ReferenceReader(patience=0.3) as reader:
        register_dataset(empty.target, LOCAL, dataset_id="rows")
        clients = RegisteredClients(empty.target, "rows")
        (reference,) = clients.references([1])
        clients.close()
        object.__setattr__(reference.group, "read", reader.blocks)
        with pytest.raises(
            RemoteError, match=rf"found none within 0.3 s; start one with .*--data-worker {empty.target}"
        ):
            list(reference)
        with WorkerServer(WorkerConfig(empty.target, dispatcher_timeout_ms=20_000)):
            assert len(list(reference)) == 1


def test_a_data_source_that_is_closed_is_read_no_more(source: DatasetDataSource) -> None:
    (reference,) = source.select([1])
    source.close()
    with pytest.raises(ClosedError, match="closed"):
        list(reference)


def test_a_dataset_that_is_too_large_to_be_held_names_the_limit() -> None:
    with data_service(1, limits=DataWorkerLimits(max_client_bytes=1_000_000)) as service:
        register_dataset(service.target, LOCAL, dataset_id="rows")
        with DatasetDataSource(service.target, "rows") as source:
            with pytest.raises(ResourceLimitError, match="--max-client-bytes"):
                list(source.select([1])[0])


def test_a_dataset_that_is_not_by_client_or_not_there_is_refused(service: DataService) -> None:
    assert register_dataset(service.target, LOCAL.dataset) != register_dataset(service.target, LOCAL)
    register_dataset(service.target, LOCAL.dataset, dataset_id="all")
    with pytest.raises(InvalidValueError, match="Expected a dataset that is registered by client, found 'all'"):
        DatasetDataSource(service.target, "all")
    with pytest.raises(InvalidValueError, match="'nothing'"):
        DatasetDataSource(service.target, "nothing")


def test_certificates_and_tokens_are_asked_for_and_given(tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    server = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    token = tmp_path / "token"
    token.write_text("let-me-in")
    ours = ClientCredentials.from_files(
        root_certificates=files.ca,
        certificate=files.client_cert,
        private_key=files.client_key,
        token_file=token,
    )
    worker_token = tmp_path / "worker-token"
    worker_token.write_text("let-me-work")
    secured: dict[str, Any] = {"credentials": server, "token_file": token, "worker_token_file": worker_token}
    with data_service(1, DispatcherConfig(**secured), client_credentials=ours, **secured) as service, as_if_elsewhere():
        register_dataset(service.target, LOCAL, dataset_id="rows", credentials=ours)
        with DatasetDataSource(service.target, "rows", ours) as source:
            (reference,) = source.select([0])
            assert len(list(reference)) == 3
        with pytest.raises(AuthenticationError):
            DatasetDataSource(service.target, "rows")


@pytest.mark.long
def test_a_server_that_is_killed_costs_no_round_with_executors_and_data_workers_in_one(tmp_path: Path) -> None:
    """Two servers, each an executor and a data worker; one of them ends in the middle of a round."""
    path = tmp_path / "rows.npz"
    elements = list(LOCAL.dataset)
    np.savez(path, **{name: np.stack([element[name] for element in elements]) for name in ("who", "row")})
    marker = str(tmp_path / "begun")

    @fedstack.python_computation([MEMBER], np.float32)
    def of_one(data):
        with open(marker, "a") as file:
            file.write(".")
        time.sleep(0.003)
        return np.float32(sum(element["row"].sum() for element in data))

    @fl.federated_computation(fl.FederatedType(MEMBER, fl.CLIENTS))
    def of_all(data):
        return fl.federated_sum(fl.federated_map(of_one, data))

    with DispatchServer() as dispatcher, contextlib.ExitStack() as stack:
        options = ["--data-worker", dispatcher.target, "--data-root", tmp_path, "--data-service", dispatcher.target]
        servers = [stack.enter_context(served("--allow-python-code", *options)) for _ in range(2)]
        register_dataset(dispatcher.target, Dataset.from_npz(path).by_client("who"), dataset_id="rows")
        source = stack.enter_context(DatasetDataSource(dispatcher.target, "rows"))
        targets = [server.target for server in servers]
        with fedstack.create_sync_remote_execution_context(targets) as context, fedstack.use_context(context):
            expected = of_all(source.iterator().select())
            Path(marker).unlink()
            killer = threading.Thread(target=_kill_when, args=(servers[0].process, Path(marker)))
            killer.start()
            assert of_all(source.iterator().select()) == expected
            killer.join()


def _kill_when(process: Any, marker: Path) -> None:
    """Kills a process once some clients have run."""
    deadline = time.monotonic() + WALL
    while not marker.exists() or marker.stat().st_size < CLIENTS // 4:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
