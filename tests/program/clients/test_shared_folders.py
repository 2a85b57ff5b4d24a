"""Workers that share the folder of clients' states read them there: the same bits, and no states over the wire."""

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import federated_language as fl
import numpy as np
import pytest
from grpc_fixture import grpc_is_up as grpc_is_up
from states_training import (
    BOTH,
    FIRST,
    SIZE,
    STATE,
    all_of,
    check_files,
    files_in,
    numbers_of,
    ones_of,
    states_in,
    step,
    step_of,
    trained,
    trained_in_program,
)
from states_training import expected as expected
from watching import Diary

import fedstack
from fedstack import ClientStates
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.stored_values import StoredResult
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.values.columns import Column
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.data.client_states import store_folders
from fedstack.data.client_states.state_shards import FileShard
from fedstack.data.client_states.store_folders import ClientStateFolders
from fedstack.data.headed_file import cannot_write
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, ProgramStateError, TypeMismatchError
from fedstack.executors.remote.phase_results import read_result
from fedstack.executors.stored.stored_results import check_stored
from fedstack.observe import add_observer
from fedstack.program import FederatedContext
from fedstack.proto.extensions_pb2 import Packed, PhaseRequest, PhaseResponse
from fedstack.service import Server, ServerConfig, local_worker_pool


@contextlib.contextmanager
def served(folder: Path, shares: Sequence[bool]) -> Iterator[list[str]]:
    """Runs workers, of which some share the folder, and yields their addresses."""
    with contextlib.ExitStack() as stack:
        configs = [ServerConfig(client_states=[folder] if one else []) for one in shares]
        yield [stack.enter_context(Server.create_local_server(config)).target for config in configs]


@pytest.mark.parametrize("shares", [(True,), (True, True), (True, False)])
def test_states_stay_in_a_folder_that_workers_share_with_the_same_bits(
    tmp_path: Path, shares: Sequence[bool], expected: list[bytes]
) -> None:
    diary = Diary()
    with served(tmp_path, shares) as targets, add_observer(diary, direct=True):
        trained_in_program(tmp_path, range(1, 3), targets)
        found = trained_in_program(tmp_path, range(3, 5), targets)  # as after a restart
    assert found == expected[2:]
    for number in ("bytes_sent", "bytes_received"):
        for sizes, is_shared in zip(numbers_of(diary, targets, number), shares):
            assert len(sizes) == 8, "two phases in each of four rounds"
            assert all((size < FIRST.nbytes / 10) == is_shared for size in sizes[6:]), (number, sizes)


def test_a_copy_of_a_run_is_not_confused_with_the_original(tmp_path: Path, expected: list[bytes]) -> None:
    diary = Diary()
    with served(tmp_path / "original", [True]) as targets, add_observer(diary, direct=True):
        trained_in_program(tmp_path / "original", range(1, 3), targets)
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        before = files_in(tmp_path / "original")
        assert trained_in_program(tmp_path / "copy", range(3, 5), targets) == expected[2:]
        assert files_in(tmp_path / "original") == before
    assert numbers_of(diary, targets, "bytes_sent")[0][4] > 6 * FIRST.nbytes


def test_what_is_updated_outside_of_a_program_is_read_by_the_workers(tmp_path: Path, expected: list[bytes]) -> None:
    diary = Diary()
    with served(tmp_path, [True]) as targets, add_observer(diary, direct=True):
        with fedstack.create_sync_remote_execution_context(targets):
            assert trained(tmp_path, range(1, 5)) == expected
    assert numbers_of(diary, targets, "bytes_sent")[0][6] < FIRST.nbytes / 10


def packed(states: ClientStates, ids: Sequence[object], *, has: bool = True) -> Packed:
    message = Packed()
    at_clients = fl.FederatedType(STATE, fl.CLIENTS)
    payload = normalize_argument(states.select(ids), at_clients)
    Packer(1 << 30, stores={states.store_id} if has else ()).pack(message, payload, at_clients)
    return Packed.FromString(message.SerializeToString())


def read(message: Packed, folders: Sequence[Path], most: int = 1 << 20) -> list[np.ndarray]:
    """Returns the values of a message at a worker that has some folders."""
    stores = ClientStateFolders(folders) if folders else None
    column = Unpacker(max_bytes=most, stores=stores).unpack(message, fl.FederatedType(STATE, fl.CLIENTS))
    return list(column.here().items())


@pytest.fixture
def states(tmp_path: Path) -> ClientStates:
    _, states = states_in(tmp_path)
    states.update(["a", "b", 3], [FIRST + np.float32(number) for number in (1, 2, 3)])
    states.update(["b"], [FIRST + np.float32(4)])
    return states


def test_states_of_several_files_and_first_states_come_in_the_order_of_the_clients(
    states: ClientStates, tmp_path: Path
) -> None:
    message = packed(states, ["new", 3, "b", "other", "a"])
    assert message.ByteSize() < 1000 + FIRST.nbytes, "the first state once"
    found = read(message, [tmp_path])
    for value, number in zip(found, [0, 3, 4, 0, 1]):
        np.testing.assert_array_equal(value, FIRST + np.float32(number))
    assert packed(states, ["a", "b"]).ByteSize() < 300
    assert packed(states, ["a", "b"], has=False).WhichOneof("kind") != "stored"


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"store": "0" * 32}, CarrierError, r"found 0{32}; name the folder of the store: fedstack serve --client-st"),
        ({"store": "../memories"}, CarrierError, r"Expected the id of a store"),
        ({"name": "../secret.states"}, InvalidValueError, "Expected the name of a file of clients' states"),
        ({"name": "/etc/passwd"}, InvalidValueError, "Expected the name of a file of clients' states"),
        ({"name": ".store"}, InvalidValueError, "Expected the name of a file of clients' states"),
        ({"name": "00000099.states"}, ProgramStateError, r"found no file .*00000099\.states"),
        ({"name": "pipe.states"}, ProgramStateError, "found no regular file"),
        ({"name": "link.states"}, InvalidValueError, r"found the link link\.states"),
        ({"digest": 7}, ProgramStateError, "found others, as after a copy from elsewhere"),
        ({"record": 1000}, InvalidValueError, r"one of 3 records in .*, found 999"),
        ({"of": 5}, InvalidValueError, "Expected a file for each of 2 stored values"),
        ({"pick": 0}, InvalidValueError, "Expected the index of a member"),
        ({"type": fl.to_type((np.float32, [SIZE + 1]))}, TypeMismatchError, "found stored values of type"),
        ({"type": fl.to_type((np.float32, [None]))}, InvalidValueError, "Expected values of fixed size"),
    ],
)
def test_what_a_caller_must_not_or_cannot_read_is_an_error(
    states: ClientStates, tmp_path: Path, change: dict, error: type[Exception], match: str
) -> None:
    (tmp_path / "secret.states").write_bytes((tmp_path / "memories" / "00000000.states").read_bytes())
    (tmp_path / "memories" / "link.states").symlink_to(tmp_path / "secret.states")
    os.mkfifo(tmp_path / "memories" / "pipe.states")
    stored = packed(states, ["a", 3])
    ((field, value),) = change.items()
    if field in ("name", "digest"):
        setattr(stored.stored.file[0], field, value)
    elif field == "record":
        stored.stored.record[1] = value
    elif field == "of":
        stored.stored.of.extend([0, value])
    elif field == "pick":
        stored.stored.pick.append(value)
    elif field == "type":
        stored.stored.type.CopyFrom(value.to_proto())
    else:
        stored.stored.store = value
    with pytest.raises(error, match=match):
        read(stored, [tmp_path])


def test_a_worker_without_folders_and_one_with_a_copy_read_nothing(states: ClientStates, tmp_path: Path) -> None:
    message = packed(states, ["a"])
    with pytest.raises(CarrierError, match=r"this process has no stores: fedstack serve --client-states FOLDER"):
        read(message, [])
    with pytest.raises(FedstackError, match="Expected at most 1000 bytes in a value, found 80000 bytes"):
        read(message, [tmp_path], most=1000)
    shutil.copytree(tmp_path / "memories", tmp_path / "copy")
    with pytest.raises(CarrierError, match="Expected the id of a store"):
        read(message, [tmp_path])
    assert len(read(message, [tmp_path / "memories"])) == 1


def test_a_folder_that_is_removed_while_stores_are_looked_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "run").mkdir()
    store = store_folders.name_store(tmp_path / "run")
    listed = os.scandir

    def scandir(folder: Path):
        if Path(folder).name == "gone":
            raise FileNotFoundError(folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert ClientStateFolders([tmp_path]).find([store]) == [store]


def test_a_damaged_record_is_named_by_the_worker_and_other_clients_go_on(tmp_path: Path) -> None:
    with served(tmp_path, [True]) as targets:
        tolerant = fedstack.create_sync_remote_execution_context(
            targets, client_failures=fedstack.ClientFailures(tolerate=1)
        )
        manager, states = states_in(tmp_path)
        states.update([1, 2], [FIRST, FIRST])
        path = tmp_path / "memories" / "00000000.states"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        ones = [{"state": state, "x": 1.0} for state in states.select([1, 2])]
        with fedstack.create_sync_remote_execution_context(targets):
            with pytest.raises(ProgramStateError, match="the state of the client 2 is damaged"):
                step(ones)
        with tolerant:
            _, changed = step(ones)
        assert isinstance(changed[1], fedstack.ClientFailure)
        assert not isinstance(changed[0], fedstack.ClientFailure)
        manager.close()


def test_states_that_are_removed_meanwhile_stay_until_the_worker_has_read_them(
    states: ClientStates, tmp_path: Path
) -> None:
    at_clients = fl.FederatedType(STATE, fl.CLIENTS)
    packer, message = Packer(1 << 30, stores={states.store_id}), Packed()
    packer.pack(message, normalize_argument(states.select(["a", 3]), at_clients), at_clients)
    states.update(["a", "b", 3], [FIRST, FIRST, FIRST])
    states.keep([])
    assert len(read(message, [tmp_path])) == 2
    del packer
    states.update(["a"], [FIRST])
    states.keep([])
    with pytest.raises(ProgramStateError, match="found no file"):
        read(message, [tmp_path])


def test_clients_that_fail_keep_their_states_and_have_no_records(tmp_path: Path) -> None:
    async def run(folder: Path) -> None:
        manager, states = states_in(folder)
        await manager.load_latest(0)
        for number in (1, 2):
            values = [1.0, -1.0, 2.0, -1.0 if number == 1 else 3.0]
            ones = [{"state": state, "x": x} for state, x in zip(states.select(["a", "bad", 3, b"c"]), values)]
            _, count = step(ones)
            assert await count.get_value() == 2 + (number == 2)
            await manager.save(number, number)
        assert states.client_ids == [b"c", 3, "a"]
        found.extend(np.asarray(states.get(client)).tobytes() for client in ("a", 3, b"c", "bad"))
        manager.close()

    policy = fedstack.ClientFailures(tolerate=2)
    found: list[bytes] = []
    with served(tmp_path / "shared", [True, True]) as targets:
        for folder, context in (
            (tmp_path / "local", fedstack.create_async_local_execution_context(client_failures=policy)),
            (tmp_path / "shared", fedstack.create_async_remote_execution_context(targets, client_failures=policy)),
        ):
            with context, fedstack.use_context(FederatedContext(context)):
                asyncio.run(run(folder))
    assert found[:4] == found[4:]
    assert found[3] == FIRST.tobytes()


def test_what_a_worker_cannot_write_travels(
    tmp_path: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(shards: Sequence[FileShard], folder: Path) -> None:
        raise cannot_write(folder, OSError(28, "No space left on device"))

    monkeypatch.setattr(store_folders, "sync_shards", full)
    with served(tmp_path, [True]) as targets:
        assert trained_in_program(tmp_path, range(1, 5), targets) == expected
    assert "because they cannot be written here: Cannot write" in caplog.text


def test_the_states_of_a_killed_worker_are_those_of_its_successor(tmp_path: Path, expected: list[bytes]) -> None:
    flag = str(tmp_path / "killed")

    @fedstack.python_computation([BOTH], STATE)
    def moved_or_killed(one):
        if one["x"] == 7 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return one["state"] * np.float32(0.7) + one["x"]

    step_or_kill = step_of(moved_or_killed)

    async def run() -> list[bytes]:
        manager, states = states_in(tmp_path)
        await manager.load_latest(0)
        for number in range(1, 5):
            step_or_kill(ones_of(states, number)[1])
            await manager.save(number, number)
        found = all_of(states)
        manager.close()
        return found

    with local_worker_pool(2, client_states=[tmp_path]) as pool:
        with fedstack.create_async_remote_execution_context(pool) as context:
            with fedstack.use_context(FederatedContext(context)):
                assert asyncio.run(run()) == expected[4:]
    assert os.path.exists(flag)
    check_files(tmp_path)


class Call:
    """Stands for the task of a call."""


@pytest.fixture
def column() -> Column:
    return normalize_argument([FIRST, FIRST + 1], fl.FederatedType(STATE, fl.CLIENTS))


def test_files_of_calls_that_run_are_spared_and_those_that_did_not_count_are_removed(
    states: ClientStates, tmp_path: Path, column: Column
) -> None:
    (asked, folder), folders = states.storing(call := Call(), ["a", 3]), ClientStateFolders([tmp_path])
    assert folder == tmp_path / "memories"
    written = [folders.write(asked.share(), f"{asked.name}-{attempt}", STATE, b'["a", 3]', column) for attempt in "12"]
    states.keep([])
    assert sum(name.startswith(asked.name) for name in files_in(tmp_path)) == 2
    assert states.apply(["a", 3], [StoredResult(one.file, one.row) for one in written[0]]) == 2
    states.end(call, True)
    states.keep([])
    assert [name for name in files_in(tmp_path) if name.startswith(asked.name)] == [f"{asked.name}-1-0.states"]
    np.testing.assert_array_equal(states.get(3), FIRST + 1)


def test_a_file_of_which_some_records_do_not_count_is_copied(
    states: ClientStates, tmp_path: Path, column: Column
) -> None:
    (asked, _), folders = states.storing(call := Call(), ["a", 3]), ClientStateFolders([tmp_path])
    written = folders.write(asked.share(), asked.name, STATE, b'["a", 3]', column)
    before = states.get("a")
    failure = fedstack.ClientFailure(0, 0, ValueError())
    assert states.apply(["a", 3], [failure, StoredResult(written[1].file, 1)]) == 1
    states.end(call, True)
    states.keep([])
    assert not any(name.startswith(asked.name) for name in files_in(tmp_path))
    np.testing.assert_array_equal(states.get(3), FIRST + 1)
    np.testing.assert_array_equal(states.get("a"), before)


@pytest.mark.parametrize(
    ("store", "name", "ids", "error", "match"),
    [
        ("0" * 32, "new", b'["a", 3]', CarrierError, "Expected the id of a store"),
        (None, "../new", b'["a", 3]', InvalidValueError, "as the beginning of names of files, found ../new"),
        (None, "", b'["a", 3]', InvalidValueError, "as the beginning of names of files"),
        (None, "new", b'["a"]', InvalidValueError, "Expected the ids of 2 clients, found 1"),
        (None, "new", b'["a", 1.5]', InvalidValueError, "Expected a list of client ids in JSON"),
        (None, "new", b'["a", {"hex": 1}]', InvalidValueError, "Expected a list of client ids in JSON"),
        (None, "new", b"[[", InvalidValueError, "Expected a list of client ids in JSON"),
        (None, "taken", b'["a", 3]', ProgramStateError, "Cannot write .*exists"),
    ],
)
def test_what_a_caller_must_not_write_is_not_written(
    states: ClientStates, tmp_path: Path, column: Column, store: str, name: str, ids: bytes, error: type, match: str
) -> None:
    (tmp_path / "memories" / "taken-0.states").write_text("taken")
    before = files_in(tmp_path)
    with pytest.raises(error, match=match):
        ClientStateFolders([tmp_path]).write(store or states.store_id or "", name, STATE, ids, column)
    assert files_in(tmp_path) == before
    assert (tmp_path / "memories" / "taken-0.states").read_text() == "taken"


def test_places_that_nobody_has_asked_for_are_refused(states: ClientStates) -> None:
    phase, _ = [task.phase for task in schedule(trace(step.to_proto())).tasks if isinstance(task, PhaseTask)]
    response = PhaseResponse(held=[packed(states, ["a", 3])])
    request = PhaseRequest()
    with pytest.raises(InvalidValueError, match="found places in a store for which nobody has asked"):
        check_stored(response, request, phase)
    request.store.add(held=0, store=states.store_id, name="0")
    check_stored(response, request, phase)
    response.held[0].stored.record[1] = 0
    unpacker = Unpacker(clients=2, for_results=True, stores=ClientStateFolders([]))
    with pytest.raises(InvalidValueError, match=r"found no results of clients \[1\], some of which are done"):
        read_result(attrs.evolve(phase, folds=()), [], range(2), PhaseResponse(held=response.held), unpacker)


def test_what_is_handed_in_while_others_run_has_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstack.backends.elastic_phase.HAND_IN_SECONDS", 0.05)
    one_at_a_time = threading.Lock()

    @fedstack.python_computation([BOTH], STATE)
    def slow(one):
        with one_at_a_time:
            time.sleep(0.015)
        return one["state"] + one["x"]

    async def run() -> None:
        manager, states = states_in(tmp_path)
        await manager.load_latest(0)
        ids = list(range(40))
        _, count = step_of(slow)([{"state": state, "x": float(x)} for x, state in zip(ids, states.select(ids))])
        assert await count.get_value() == 40
        assert len(files_in(tmp_path)) > 2, "not one for each phase"
        for client in ids:
            assert states.get(client)[-1] == 1 + client - np.float32(20.5)
        await manager.save(1, 1)
        manager.close()

    with served(tmp_path, [True]) as targets:
        with fedstack.create_async_remote_execution_context(targets) as context:
            with fedstack.use_context(FederatedContext(context)):
                asyncio.run(run())
    check_files(tmp_path)
