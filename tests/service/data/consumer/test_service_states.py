"""Executors without the folder of clients' states use data workers that have it: the same bits, and no states sent."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import federated_language as fl
import numpy as np
import pytest
from client_service import DataService, as_if_elsewhere, data_service
from grpc_fixture import grpc_is_up as grpc_is_up
from serving import served
from states_training import (
    FIRST,
    STATE,
    all_of,
    check_files,
    numbers_of,
    ones_of,
    states_in,
    step,
    trained_in_program,
)
from states_training import expected as expected
from watching import Diary

import fedstack
from fedstack.computations.codec.stored_values import StoredValue
from fedstack.computations.values.columns import Column
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.data.client_states import store_folders
from fedstack.data.client_states.state_shards import FileShard
from fedstack.data.client_states.store_folders import ClientStateFolders, name_store
from fedstack.data.headed_file import cannot_write
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, ProgramStateError, WorkerUnavailableError
from fedstack.observe import add_observer
from fedstack.program import FederatedContext
from fedstack.service import Server, ServerConfig
from fedstack.service.data import DataWorkerLimits, DispatchServer, WorkerConfig, WorkerServer
from fedstack.service.data.consumer import service_states
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.data.consumer.service_states import ServiceStates


@contextlib.contextmanager
def executors(service: str, count: int = 2) -> Iterator[list[str]]:
    """Runs workers that use a data service, and yields their addresses."""
    with contextlib.ExitStack() as stack:
        config = ServerConfig(data_services=[service])
        yield [stack.enter_context(Server.create_local_server(config)).target for _ in range(count)]


@contextlib.contextmanager
def states_service(
    folder: Path, place: str = "elsewhere", workers: int = 2, **options: object
) -> Iterator[DataService]:
    with data_service(workers, client_states=[folder], **options) as service:
        with as_if_elsewhere() if place == "elsewhere" else contextlib.nullcontext():
            yield service


@pytest.mark.parametrize("place", ["elsewhere", "here"])
def test_states_stay_at_a_data_service_with_the_same_bits(tmp_path: Path, expected: list[bytes], place: str) -> None:
    diary = Diary()
    with states_service(tmp_path, place) as service, executors(service.target) as targets:
        with add_observer(diary, direct=True):
            trained_in_program(tmp_path, range(1, 3), targets)
            found = trained_in_program(tmp_path, range(3, 5), targets)  # as after a restart
    assert found == expected[2:]
    for number in ("bytes_sent", "bytes_received"):
        for sizes in numbers_of(diary, targets, number):
            assert len(sizes) == 8, "two phases in each of four rounds"
            assert all(size < FIRST.nbytes / 10 for size in sizes[6:]), (number, sizes)


def test_states_travel_where_no_data_worker_has_their_folder(tmp_path: Path, expected: list[bytes]) -> None:
    (tmp_path / "other").mkdir()
    with states_service(tmp_path / "other") as service, executors(service.target) as targets:
        assert trained_in_program(tmp_path / "run", range(1, 5), targets) == expected
    with executors("localhost:1") as targets:  # nobody is there
        assert trained_in_program(tmp_path / "away", range(1, 5), targets) == expected


def test_what_a_data_worker_cannot_write_travels(
    tmp_path: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(shards: Sequence[FileShard], folder: Path) -> None:
        raise cannot_write(folder, OSError(28, "No space left on device"))

    monkeypatch.setattr(store_folders, "sync_shards", full)
    with states_service(tmp_path) as service, executors(service.target) as targets:
        assert trained_in_program(tmp_path, range(1, 5), targets) == expected
    assert "Cannot write states of clients over a data service" in caplog.text
    assert "No space left on device" in caplog.text


def states_after(folder: Path, targets: Sequence[str], after: Callable[[int], None]) -> list[bytes]:
    """Runs four rounds in a program, calls `after` with the number of each, and returns all states."""

    async def run() -> list[bytes]:
        manager, states = states_in(folder)
        await manager.load_latest(0)
        for number in range(1, 5):
            step(ones_of(states, number)[1])
            await manager.save(number, number)
            after(number)
        found = all_of(states)
        manager.close()
        return found

    with fedstack.create_async_remote_execution_context(targets) as context:
        with fedstack.use_context(FederatedContext(context)):
            found = asyncio.run(run())
    check_files(folder)
    return found


@pytest.mark.slow
def test_a_data_worker_that_is_killed_is_replaced_by_another(tmp_path: Path, expected: list[bytes]) -> None:
    def after(number: int) -> None:
        if number == 2:
            data_workers[0].process.kill()
        if number == 3:
            data_workers[1].process.kill()
            data_workers.append(stack.enter_context(served(*options)))

    with DispatchServer() as dispatcher, contextlib.ExitStack() as stack:
        options = ["--data-worker", dispatcher.target, "--client-states", tmp_path]
        data_workers = [stack.enter_context(served(*options)) for _ in range(2)]
        targets = stack.enter_context(executors(dispatcher.target))
        assert states_after(tmp_path, targets, after) == expected[4:]


ROWS = 100


@pytest.fixture
def column() -> Column:
    """States of 8 MB together, which travel in several parts."""
    return normalize_argument([FIRST + np.float32(row) for row in range(ROWS)], fl.FederatedType(STATE, fl.CLIENTS))


def ids(count: int = ROWS) -> bytes:
    return json.dumps(list(range(count))).encode()


@contextlib.contextmanager
def stores(folder: Path, **options: object) -> Iterator[tuple[ServiceStates, str]]:
    """Yields the stores of an executor, and the id of the one in a folder that a data worker has."""
    with states_service(folder, workers=1, **options) as service:
        with ReferenceReader(None, [service.target]) as reader:
            yield ServiceStates(reader, [service.target], ClientStateFolders(()), patience=0.5), name_store(folder)


def test_states_are_read_in_the_order_in_which_they_are_wanted(tmp_path: Path, column: Column) -> None:
    with stores(tmp_path) as (states, store):
        assert states.find(["0" * 32, store]) == [store]
        written = states.write(store, "call", STATE, ids(), column)
        order = np.random.default_rng(0).permutation(ROWS).tolist()
        found = states.read([written[row] for row in order]).items()
    assert len({one.file.name for one in written}) > 3, "several files in several parts"
    for value, row in zip(found, order):
        np.testing.assert_array_equal(value, FIRST + np.float32(row))
    folders = ClientStateFolders([tmp_path])
    there = [StoredValue(attrs.evolve(one.file, folders=folders), one.row) for one in written]
    np.testing.assert_array_equal(folders.read(there).items()[-1], FIRST + np.float32(ROWS - 1))


def test_the_states_of_several_stores_are_read_together(tmp_path: Path, column: Column) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with stores(tmp_path / "a") as (states, first), ReferenceReader() as reader:
        local = name_store(tmp_path / "b")
        with states_service(tmp_path / "b") as other:
            services = [states._services[0], other.target]
            both = ServiceStates(reader, services, ClientStateFolders(()))
            assert both.find([local, first]) == [local, first]
            written = [both.write(store, "call", STATE, ids(2), column.slice(0, 2)) for store in (local, first)]
            found = both.read([written[0][1], written[1][0], written[0][0]]).items()
    for value, row in zip(found, (1, 0, 0)):
        np.testing.assert_array_equal(value, FIRST + np.float32(row))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"store": "0" * 32}, CarrierError, "Expected the id of a store of clients' states"),
        ({"name": "../secret.states"}, InvalidValueError, "Expected the name of a file of clients' states"),
        ({"name": "gone.states"}, ProgramStateError, "found no file"),
        ({"digest": 7}, ProgramStateError, "found others, as after a copy from elsewhere"),
        ({"type_spec": fl.TensorType(np.float32, [3])}, InvalidValueError, "Expected states of clients with"),
    ],
)
def test_what_is_not_there_is_an_error(
    tmp_path: Path, column: Column, change: dict[str, object], error: type[Exception], match: str
) -> None:
    with stores(tmp_path) as (states, store):
        (written,) = states.write(store, "call", STATE, ids(1), column.slice(0, 1))
        with pytest.raises(error, match=match):
            states.read([StoredValue(attrs.evolve(written.file, **change), 0)])
        with pytest.raises(InvalidValueError, match="Expected the index of one of 1 records"):
            states.read([StoredValue(written.file, 1)])
        np.testing.assert_array_equal(states.read([written]).items()[0], FIRST)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("../call", ids(1), "Expected letters, digits and hyphens"),
        ("call", ids(2), "Expected the ids of 1 clients, found 2"),
        ("call", b"[[]]", "Expected"),
        ("call", b"{", "Expected a list of client ids in JSON"),
    ],
)
def test_what_must_not_be_written_is_an_error_and_leaves_no_file(
    tmp_path: Path, column: Column, name: str, content: bytes, match: str
) -> None:
    with stores(tmp_path) as (states, store):
        with pytest.raises(FedstackError, match=match):
            states.write(store, name, STATE, content, column.slice(0, 1))
    assert not list(tmp_path.glob("*.states"))


def test_requests_are_divided_as_the_data_worker_allows(tmp_path: Path, column: Column) -> None:
    limits = DataWorkerLimits(max_block_bytes=70_000)
    with stores(tmp_path, limits=limits) as (states, store):
        written = states.write(store, "call", STATE, ids(), column)
        found = states.read(written)
        assert len(states.read(written[:1])) == 1, "one state may be larger"
    for row, value in enumerate(found.items()):
        np.testing.assert_array_equal(value, FIRST + np.float32(row))


def test_a_worker_that_has_a_store_no_more_is_replaced_by_another(tmp_path: Path, column: Column) -> None:
    with data_service(1, client_states=[tmp_path / "one"]) as service, as_if_elsewhere():
        config = WorkerConfig(service.target, client_states=[tmp_path / "two"], dispatcher_timeout_ms=20_000)
        with WorkerServer(config), as_if_elsewhere(), ReferenceReader() as reader:
            states = ServiceStates(reader, [service.target], ClientStateFolders(()))
            (tmp_path / "one").mkdir()
            store = name_store(tmp_path / "one")
            (written,) = states.write(store, "call", STATE, ids(1), column.slice(0, 1))
            (tmp_path / "one").rename(tmp_path / "two")
            states._holders.put(store, states._holders.get(store) | _all_workers(reader, service.target), 1)
            np.testing.assert_array_equal(states.read([written]).items()[0], FIRST)
            assert states.find([store]) == [store]


def _all_workers(reader: ReferenceReader, service: str) -> frozenset[tuple[str, bytes]]:
    return frozenset((service, worker) for worker in reader.workers(service).usable)


@pytest.mark.slow
def test_states_are_sent_where_the_last_data_worker_is_lost(tmp_path: Path, expected: list[bytes]) -> None:
    def after(number: int) -> None:
        if number == 2:
            data_worker.process.kill()

    with DispatchServer() as dispatcher, executors(dispatcher.target) as targets:
        with served("--data-worker", dispatcher.target, "--client-states", tmp_path) as data_worker:
            assert states_after(tmp_path, targets, after) == expected[4:]


def test_a_store_is_looked_for_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_states, "_UNKNOWN_SECONDS", 0.0)
    with stores(tmp_path) as (states, before):
        after = name_store(tmp_path)
        assert states.find([before]) == []
        assert states.find([after, before]) == [after]


def test_states_of_a_lost_data_worker_are_an_error_that_says_what_to_do(tmp_path: Path, column: Column) -> None:
    with contextlib.ExitStack() as stack:
        with data_service(1, client_states=[tmp_path]) as service, as_if_elsewhere():
            reader = stack.enter_context(ReferenceReader())
            states = ServiceStates(reader, [service.target], ClientStateFolders(()), patience=0.5)
            store = name_store(tmp_path)
            assert states.find([store]) == [store]
            written = states.write(store, "call", STATE, ids(1), column.slice(0, 1))
        with pytest.raises(WorkerUnavailableError, match="start one: fedstack serve --data-worker DISPATCHER --client"):
            states.read(written)
        with pytest.raises(ProgramStateError, match="Cannot write states of clients over a data service"):
            states.write(store, "call", STATE, ids(1), column.slice(0, 1))
