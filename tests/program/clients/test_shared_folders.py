"""Workers that share the folder of clients' states read them there: the same bits, and no states over the wire."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from grpc_fixture import grpc_is_up as grpc_is_up
from watching import Diary

import fedstack
from fedstack import ClientStates
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.stored_values import Stores
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.data.client_states.store_folders import ClientStateFolders
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, ProgramStateError, TypeMismatchError
from fedstack.observe import add_observer
from fedstack.observe.events import PhaseEnded
from fedstack.program import FileProgramStateManager
from fedstack.proto.extensions_pb2 import Packed
from fedstack.service import Server, ServerConfig

SIZE = 20_000
STATE = fl.TensorType(np.float32, [SIZE])
BOTH = fl.to_type({"state": STATE, "x": np.float32})
FIRST = np.linspace(0, 1, SIZE, dtype=np.float32)


@fedstack.python_computation([BOTH], STATE)
def moved(one):
    if one["x"] < 0:
        raise ValueError("no")
    return one["state"] * np.float32(0.7) + one["x"]


@fl.federated_computation(fl.FederatedType(BOTH, fl.CLIENTS))
def step(ones):
    changed = fl.federated_map(moved, ones)
    return fl.federated_mean(changed), changed


@contextlib.contextmanager
def served(folder: Path, shares: Sequence[bool]) -> Iterator[list[str]]:
    """Runs workers, of which some share the folder, and yields their addresses."""
    with contextlib.ExitStack() as stack:
        configs = [ServerConfig(client_states=[folder] if one else []) for one in shares]
        yield [stack.enter_context(Server.create_local_server(config)).target for config in configs]


def states_in(folder: Path) -> tuple[FileProgramStateManager, ClientStates]:
    manager = FileProgramStateManager(folder / "program", keep_total=1, keep_first=False)
    return manager, ClientStates(folder / "memories", like=FIRST, state_manager=manager)


def trained(folder: Path, rounds: range) -> list[bytes]:
    """Runs rounds with some of nine clients each, and returns all that came out of them, and all states."""
    manager, states = states_in(folder)
    _, last = asyncio.run(manager.load_latest(0))
    assert last == rounds.start - 1
    found: list[bytes] = []
    for number in rounds:
        ids = [(number * 4 + place) % 9 for place in range(6)]
        ones = [{"state": state, "x": float(client)} for client, state in zip(ids, states.select(ids))]
        mean, changed = step(ones)
        states.update(ids, changed)
        asyncio.run(manager.save(number, number))
        found.append(mean.tobytes())
    found += [np.asarray(states.get(client)).tobytes() for client in range(9)]
    manager.close()
    return found


@pytest.mark.parametrize("shares", [(True,), (True, True), (True, False)])
def test_states_stay_in_a_folder_that_workers_share_with_the_same_bits(tmp_path: Path, shares: Sequence[bool]) -> None:
    with fedstack.create_sync_local_execution_context():
        expected = trained(tmp_path / "local", range(1, 5))
    with served(tmp_path / "shared", shares) as targets:
        diary = Diary()
        with fedstack.create_sync_remote_execution_context(targets), add_observer(diary, direct=True):
            trained(tmp_path / "shared", range(1, 3))
            found = trained(tmp_path / "shared", range(3, 5))  # as after a restart
    assert found == expected[2:]
    phases = [one for one in diary.of(PhaseEnded) if one.bytes_sent]
    sent = {target: [one.bytes_sent for one in phases if one.worker in target] for target in targets}
    for target, is_shared in zip(targets, shares):
        assert len(sent[target]) == 4
        assert all((size < FIRST.nbytes / 10) == is_shared for size in sent[target][3:]), sent


def packed(states: ClientStates, ids: Sequence[object], *, has: bool = True) -> Packed:
    message = Packed()
    at_clients = fl.FederatedType(STATE, fl.CLIENTS)
    payload = normalize_argument(states.select(ids), at_clients)
    Packer(1 << 30, stores={states.store_id} if has else ()).pack(message, payload, at_clients)
    return Packed.FromString(message.SerializeToString())


def read(message: Packed, folders: Sequence[Path], most: int = 1 << 20) -> list[np.ndarray]:
    """Returns the values of a message at a worker that has some folders."""
    scope = WorkScope(policy=CarrierPolicy())
    if folders:
        scope = scope.adding(Stores(ClientStateFolders(folders)))
    with scope.entered():
        column = Unpacker(max_bytes=most).unpack(message, fl.FederatedType(STATE, fl.CLIENTS))
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
