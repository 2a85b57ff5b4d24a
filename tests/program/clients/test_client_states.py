"""The states of clients: read, updated, saved with the state of a program, and removed with its last version."""

import asyncio
import contextlib
import gc
import os
import random
import re
import shutil
import threading
from pathlib import Path

import federated_language as fl
import ml_dtypes
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack import ClientStates
from fedstack.data.client_states.state_shards import FileShard
from fedstack.errors import (
    ClosedError,
    ContextError,
    InvalidComputationError,
    InvalidValueError,
    LeafError,
    ProgramStateError,
    TypeMismatchError,
)
from fedstack.program import FederatedContext, FileProgramStateManager
from fedstack.program.clients.shard_stores import FolderStore

CONTROL = fl.TensorType(np.float32, [3])
FIRST = np.zeros(3, np.float32)


@fedstack.python_computation([CONTROL, np.float32], CONTROL)
def moved(control, x):
    if x < 0:
        raise ValueError("no")
    return control + x


@fl.federated_computation(fl.FederatedType(CONTROL, fl.CLIENTS), fl.FederatedType(np.float32, fl.CLIENTS))
def step(controls, xs):
    changed = fl.federated_map(moved, (controls, xs))
    return fl.federated_sum(changed), changed


@fl.federated_computation(fl.FederatedType(CONTROL, fl.CLIENTS), fl.FederatedType(np.float32, fl.CLIENTS))
def changed(controls, xs):
    return fl.federated_map(moved, (controls, xs))


@fedstack.python_computation(np.int32, np.int32)
def counted_on(count):
    return count + 1


@fl.federated_computation(fl.FederatedType(CONTROL, fl.CLIENTS), fl.FederatedType(np.int32, fl.CLIENTS))
def both(controls, counts):
    return fl.federated_map(moved, (controls, fl.federated_value(np.float32(1), fl.CLIENTS))), fl.federated_map(
        counted_on, counts
    )


@fedstack.python_computation(np.float32, np.int32)
def whole(state):
    return np.int32(state)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def counted(states):
    return fl.federated_map(whole, states)


def in_folder(folder: Path, like: object = FIRST, **options) -> tuple[FileProgramStateManager, ClientStates]:
    manager = FileProgramStateManager(folder / "program", **options)
    return manager, ClientStates(folder / "controls", like=like, state_manager=manager)


def saved(folder: Path, rounds: int, **options) -> None:
    """Adds the number of the round to the states of two of three clients in each round."""
    manager, states = in_folder(folder, **options)
    _, last = asyncio.run(manager.load_latest(0))
    for number in range(last + 1, rounds + 1):
        ids = [f"client {(number + place) % 3}" for place in range(2)]
        states.update(ids, [state + np.float32(number) for state in map(states.get, ids)])
        asyncio.run(manager.save(number, number))
    manager.close()


def expected(rounds: int) -> dict[str, float]:
    found = dict.fromkeys([f"client {number}" for number in range(3)], 0.0)
    for number in range(1, rounds + 1):
        for place in range(2):
            found[f"client {(number + place) % 3}"] += number
    return found


def found(states) -> dict[str, float]:
    return {f"client {number}": float(np.asarray(states.get(f"client {number}"))[0]) for number in range(3)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "controls").glob("*.states"))


def test_a_client_has_the_first_state_until_it_is_updated() -> None:
    states = ClientStates(like=FIRST)
    states.update(["a"], [np.float32([1, 2, 3])])
    assert np.array_equal(states.get("a"), [1, 2, 3])
    assert np.array_equal(states.get("b"), [0, 0, 0])
    assert states.client_ids == ["a"]


def test_a_computation_reads_states_and_its_results_update_them() -> None:
    states = ClientStates(like=FIRST)
    with fedstack.create_sync_local_execution_context():
        for _ in range(3):
            total, changed = step(states.select(["a", "b"]), [1.0, 2.0])
            states.update(["a", "b"], changed)
    assert np.array_equal(total, [9, 9, 9])
    assert (states.get("a")[0], states.get("b")[0]) == (3.0, 6.0)


def test_a_client_that_failed_keeps_its_state() -> None:
    states = ClientStates(like=FIRST)
    states.update(["bad"], [np.full(3, 5, np.float32)])
    with fedstack.create_sync_local_execution_context(client_failures=fedstack.ClientFailures(tolerate=1)):
        _, changed = step(states.select(["a", "bad"]), [1.0, -1.0])
    states.update(["a", "bad"], changed)
    assert (states.get("a")[0], states.get("bad")[0]) == (1.0, 5.0)


def test_states_are_members_of_what_clients_have() -> None:
    both = fl.to_type({"state": CONTROL, "x": np.float32})

    @fedstack.python_computation([both], CONTROL)
    def from_both(one):
        return one["state"] + one["x"]

    @fl.federated_computation(fl.FederatedType(both, fl.CLIENTS))
    def run(ones):
        return fl.federated_map(from_both, ones)

    states = ClientStates(like=FIRST)
    states.update(["b"], [np.float32([1, 1, 1])])
    with fedstack.create_sync_local_execution_context():
        found = run([{"state": s, "x": 1.0} for s in states.select(["a", "b"])])
    assert [row[0] for row in found] == [1.0, 2.0]


def test_saved_states_come_back_with_the_state_of_the_program(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    manager, states = in_folder(tmp_path)
    for use in (found, lambda states: states.select(["client 0"]), lambda states: states.client_ids):
        with pytest.raises(ProgramStateError, match=r"found version 4 in .*, which was not; call load_latest first"):
            use(states)
    assert asyncio.run(manager.load_latest(0)) == (4, 4)
    assert found(states) == expected(4)


def test_states_that_were_not_saved_are_forgotten_and_their_files_removed(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    before = names(tmp_path)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    states.update(["client 0"], [np.full(3, 99, np.float32)])
    assert states.get("client 0")[0] == 99.0, "calls of the same round read it"
    assert len(names(tmp_path)) > len(before)
    manager.close()
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    assert found(states) == expected(2)
    assert names(tmp_path) == before


def test_each_version_that_is_kept_has_its_states(tmp_path: Path) -> None:
    saved(tmp_path, 9, keep_total=3)
    manager, states = in_folder(tmp_path, keep_total=3)
    asyncio.run(manager.load_latest(0))
    assert asyncio.run(manager.get_versions()) == [1, 8, 9]
    for version in (1, 8, 9):
        assert found(asyncio.run(states.at(version))) == expected(version)
    with pytest.raises(fl.program.ProgramStateNotFoundError):
        asyncio.run(states.at(5))
    of_kept = {
        name for version in (1, 8, 9) for name, _ in asyncio.run(manager.releases_of(version, "controls"))["shards"]
    }
    assert names(tmp_path) == sorted(of_kept)


def test_older_states_that_are_copied_over_newer_ones_are_found(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    files = sorted((tmp_path / "controls").glob("*.states"))
    files[-1].write_bytes(files[-2].read_bytes())
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0))[1] < 3
    with pytest.raises(ProgramStateError, match=r"found others, as after a copy from elsewhere"):
        asyncio.run(states.at(3))


def test_files_with_the_same_states_of_other_clients_are_told_from_each_other(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    for number, ids in enumerate((["a", "b"], ["c", "d"]), 1):
        states.update(ids, [FIRST + 1] * 2)
        asyncio.run(manager.save(number, number))
    manager.close()
    first, second = [tmp_path / "controls" / name for name in names(tmp_path)]
    first.write_bytes(second.read_bytes())
    manager, _ = in_folder(tmp_path)
    with pytest.raises(ProgramStateError, match=r"found others, as after a copy from elsewhere"):
        asyncio.run(manager.load(2, 0))
    manager.close()


def test_updates_go_on_beside_a_file_that_somebody_puts_into_the_folder(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    states.update(["a"], [FIRST + 1])
    asyncio.run(manager.save(1, 1))
    for name in ("00000001.states", "00000003.states", "my own.states"):
        (tmp_path / "controls" / name).write_text("precious")
    for number in (2, 3, 4):
        states.update(["a"], [FIRST + number])
        asyncio.run(manager.save(number, number))
    assert float(states.get("a")[0]) == 4.0
    assert {"00000001.states", "00000003.states", "my own.states"} < set(names(tmp_path))
    assert (tmp_path / "controls" / "00000001.states").read_text() == "precious"
    manager.close()


def test_files_that_end_like_those_of_fedstack_stay_where_they_are(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
    asyncio.run(manager.load_latest(0))
    for number in (1, 2, 3):
        states.update(["a"], [FIRST + number])
        asyncio.run(manager.save(number, number))
        if number == 1:
            shutil.copy(tmp_path / "controls" / names(tmp_path)[0], tmp_path / "controls" / "my copy.states")
            (tmp_path / "controls" / "empty.states").touch()
            (tmp_path / "controls" / "raw zeros.states").write_bytes(bytes(1000))
    assert set(names(tmp_path)) > {"my copy.states", "empty.states", "raw zeros.states"}
    manager.close()


def test_states_of_a_program_that_is_closed_are_not_updated(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    manager.close()
    with pytest.raises(ClosedError, match="found that it has been closed"):
        states.update(["a"], [FIRST])


def test_arrays_of_jax_and_others_are_examples_and_states() -> None:
    class Tensor:
        dtype, shape = np.dtype(np.float32), (3,)

        def __array__(self, dtype=None, copy=None) -> np.ndarray:
            return np.ones(3, np.float32)

    states = ClientStates(like={"control": Tensor()})
    states.update(["a"], [{"control": Tensor()}])
    np.testing.assert_array_equal(states.get("a")["control"], np.ones(3))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"folder": 3}, "the path of a folder as folder, found int 3"),
        ({"folder": "a\0"}, "the path of a folder as folder"),
        ({"folder": "a", "state_manager": 3}, "Expected FileProgramStateManager as state_manager, found int 3"),
        ({"name": 3}, "a name of printable characters as name, found int 3"),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        ClientStates(like=FIRST, **arguments)


def test_a_damaged_newest_version_takes_its_states_with_it(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    path = tmp_path / "program" / "program_state_3"
    path.write_bytes(path.read_bytes()[:-1])
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (2, 2)
    assert found(states) == expected(2)


def test_a_damaged_or_missing_state_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (path,) = (tmp_path / "controls").glob("*.states")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    assert states.get("client 1")[0] == 1.0, "other clients' states are as they were"
    with pytest.raises(ProgramStateError, match="the state of the client 'client 2' is damaged"):
        states.get("client 2")
    manager.close()


def test_states_of_a_file_that_was_cut_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    (path,) = (tmp_path / "controls").glob("*.states")
    os.truncate(path, 64)
    with pytest.raises(ProgramStateError, match="the state of the client 'client 1' is damaged"):
        states.get("client 1")
    manager.close()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reads fail")
def test_a_disk_that_fails_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    (path,) = (tmp_path / "controls").glob("*.states")
    path.unlink()
    path.symlink_to("/proc/self/mem")
    with pytest.raises(ProgramStateError, match="Cannot read .*; check the disk"):
        states.get("client 1")
    path.unlink()
    os.mkfifo(path)  # for which nobody waits
    with pytest.raises(ProgramStateError, match="Cannot read"):
        states.get("client 1")
    manager.close()


def test_a_state_whose_values_have_one_path_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"different paths in the state of a client, found 'a\.b' twice"):
        ClientStates(like={"a": {"b": np.float32(0)}, "a.b": np.float32(0)})


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:50])])
def test_a_version_whose_states_are_lost_is_passed_over_and_saved_again(tmp_path: Path, damage, caplog) -> None:
    saved(tmp_path, 3)
    damage(tmp_path / "controls" / names(tmp_path)[-1])
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (2, 2)
    assert "Passed over version 3" in caplog.text
    assert found(states) == expected(2)
    manager.close()
    saved(tmp_path, 4)
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (4, 4)
    assert found(states) == expected(4)


def test_states_go_on_from_the_version_that_is_loaded(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load(2, 0)) == 2
    assert found(states) == expected(2)
    assert asyncio.run(manager.load(4, 0)) == 4
    assert found(states) == expected(4)


def test_states_that_are_opened_after_the_load_have_what_was_saved(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    manager = FileProgramStateManager(tmp_path / "program")
    asyncio.run(manager.load_latest(0))
    assert found(ClientStates(tmp_path / "controls", like=FIRST, state_manager=manager)) == expected(3)


def test_a_save_without_a_load_does_not_lose_states(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    manager, states = in_folder(tmp_path)
    with pytest.raises(ProgramStateError, match="call load_latest first"):
        states.update(["client 0"], [FIRST])
    with pytest.raises(ProgramStateError, match="call load_latest first"):
        asyncio.run(manager.save(0, 4))


def test_states_of_another_structure_are_refused_with_both(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manager, _ = in_folder(tmp_path, like=np.zeros(4, np.float32))
    with pytest.raises(InvalidValueError, match=r"one value float32\[4\].*found one value float32\[3\]"):
        asyncio.run(manager.load_latest(0))


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    _, states = in_folder(tmp_path)
    states.update(["a"], [FIRST])
    shutil.copytree(tmp_path / "program", tmp_path / "other")
    other = FileProgramStateManager(tmp_path / "other")
    with pytest.raises(ProgramStateError, match="uses it"):
        ClientStates(tmp_path / "controls", like=FIRST, state_manager=other).update(["a"], [FIRST])


def test_ids_may_be_anything_that_names_a_client(tmp_path: Path) -> None:
    ids = ["../../etc/passwd", "", "ü\n", b"\xff\x00", 7, -(2**70), "7"]
    manager, states = in_folder(tmp_path)
    states.update([*ids[:-1], np.str_("7")], [np.full(3, place, np.float32) for place in range(len(ids))])
    asyncio.run(manager.save(0, 1))
    manager.close()
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    assert [states.get(one)[0] for one in ids] == list(range(len(ids)))
    assert states.get(np.int64(7))[0] == 4.0
    assert sorted(map(str, states.client_ids)) == sorted(map(str, ids))


@pytest.mark.parametrize("wrong", [1.5, None, True, ("a",), ["a"]])
def test_what_cannot_be_an_id_is_named(wrong) -> None:
    with pytest.raises(TypeMismatchError, match="as client ids, found"):
        ClientStates(like=FIRST).select(["a", wrong])


@pytest.mark.parametrize("like", ["text", {"a": "text"}, object(), {}, None, [np.array(["a"])]])
def test_what_cannot_be_a_state_is_named(like) -> None:
    with pytest.raises(InvalidValueError, match="state of a client"):
        ClientStates(like=like)


def test_a_state_that_is_not_like_the_first_is_named_with_its_client() -> None:
    states = ClientStates(like={"a": FIRST, "b": 1.0})
    with pytest.raises(TypeMismatchError, match="the state of the client 'y'"):
        states.update(["x", "y"], [{"a": FIRST, "b": 2.0}, {"a": np.zeros(4, np.float32), "b": 2.0}])
    assert states.client_ids == []
    with pytest.raises(InvalidValueError, match="found 'x' twice"):
        states.update(["x", "x"], [{"a": FIRST, "b": 2.0}] * 2)
    with pytest.raises(InvalidValueError, match="a state for each of 2 clients, found 1"):
        states.update(["x", "y"], [{"a": FIRST, "b": 2.0}])


def test_a_folder_that_cannot_be_written_to_leaves_the_states(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load_latest(0))
    (tmp_path / "controls").rename(tmp_path / "away")
    with pytest.raises(ProgramStateError, match="Cannot write"):
        states.update(["client 0"], [FIRST])
    (tmp_path / "away").rename(tmp_path / "controls")
    assert found(states) == expected(2)


STATES = st.sampled_from(
    [
        np.float32(1.5),
        np.zeros((2, 3), np.float64),
        {"b": np.zeros(2, np.int8), "a": (np.float32(0), [np.zeros((2, 1), bool)])},
        {"w": np.zeros(3, ml_dtypes.bfloat16), "n": np.int64(3), "c": np.zeros(2, np.complex64)},
        (np.zeros((0, 3), np.float32), np.uint8(1)),
    ]
)


@settings(max_examples=examples(60))
@given(STATES, st.lists(st.sets(st.integers(0, 12), max_size=8), max_size=30), st.integers(0, 10**6))
def test_any_states_come_back_in_their_bits(tmp_path_factory, like, rounds, seed) -> None:
    """Compares with a dictionary, over many rounds, so that shards are copied and dropped."""
    chance = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("states")
    layout = ClientStates(like=like)._layout
    known: dict[int, bytes] = {}
    manager, states = in_folder(folder, like=like, keep_total=1, keep_first=False)
    for number, clients in enumerate(rounds, 1):
        records = np.frombuffer(chance.bytes(layout.dtype.itemsize * len(clients)), np.uint8).copy()
        if "bool" in str(layout.dtype):
            records &= 1
        drawn = layout.column(records.reshape(len(clients), layout.dtype.itemsize)).items()
        values = [fedstack.computations.values.containers.to_result(one, states.state_type) for one in drawn]
        states.update(sorted(clients), values)
        known.update(zip(sorted(clients), [layout.records(layout.checked([one], str)).tobytes() for one in values]))
        asyncio.run(manager.save(0, number))
        if chance.random() < 0.2:
            manager.close()
            manager, states = in_folder(folder, like=like, keep_total=1, keep_first=False)
            asyncio.run(manager.load_latest(0))
        assert states.client_ids == sorted(known)
        for client, content in known.items():
            assert layout.records(layout.checked([states.get(client)], str)).tobytes() == content
    manager.close()


def test_rounds_of_the_same_clients_leave_little_behind(tmp_path: Path) -> None:
    chance = random.Random(0)
    manager, states = in_folder(tmp_path, like=np.zeros(1000, np.float32), keep_total=1, keep_first=False)
    for number in range(1, 60):
        clients = chance.sample(range(100), 10)
        states.update(clients, [np.full(1000, number, np.float32)] * 10)
        asyncio.run(manager.save(0, number))
    size = sum(path.stat().st_size for path in (tmp_path / "controls").glob("*.states"))
    assert size < 4 * 100 * 4000


@pytest.fixture
def in_program() -> None:
    before = fl.framework.get_context_stack().current
    fl.framework.set_default_context(FederatedContext(fedstack.create_async_local_execution_context()))
    yield
    fl.framework.set_default_context(before)


def test_a_program_updates_states_in_the_order_of_its_calls(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path, keep_total=0)
        await manager.load_latest([FIRST])
        saves = []
        for number in range(1, 6):  # the calls and saves of all rounds are begun before any of them has ended
            total, count = step(states.select(["a", "b"]), [1.0, float(number)])
            saves.append(asyncio.create_task(manager.save([total, count], number)))
        for save in saves:
            await save
        for number in range(1, 6):
            version = await states.at(number)
            assert (version.get("a")[0], version.get("b")[0]) == (number, number * (number + 1) / 2)
            (total, count) = await manager.load(number, [FIRST, 0])
            assert (total[0], count) == (number + number * (number + 1) / 2, 2)

    asyncio.run(run())


def test_a_program_with_failing_clients_keeps_their_states(tmp_path: Path) -> None:
    async def run() -> None:
        context = fedstack.create_async_local_execution_context(client_failures=fedstack.ClientFailures(tolerate=2))
        with fl.framework.get_context_stack().install(FederatedContext(context)):
            states = ClientStates(like=FIRST)
            _, count = step(states.select(["a", "bad", "c"]), [1.0, -1.0, 2.0])
            assert await count.get_value() == 2
            assert states.client_ids == ["a", "c"]

    asyncio.run(run())


def test_values_of_clients_that_are_no_states_are_refused_in_a_program(in_program) -> None:
    async def run() -> None:
        with pytest.raises(InvalidComputationError, match="pass the clients' states"):
            step([FIRST, FIRST], [1.0, 1.0])
        states = ClientStates(like=FIRST)
        with pytest.raises(InvalidComputationError, match="one kind for all clients"):
            step([*states.select(["a"]), FIRST], [1.0, 1.0])
        with pytest.raises(InvalidComputationError, match="^Expected states of the type float32.* found int32; return"):
            counted(ClientStates(like=np.float32(0)).select(["a"]))

    asyncio.run(run())


def test_a_folder_and_a_state_manager_go_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="found only one of them"):
        ClientStates(tmp_path, like=FIRST)
    with pytest.raises(InvalidValueError, match="found only one of them"):
        ClientStates(like=FIRST, state_manager=FileProgramStateManager(tmp_path))


def test_many_small_shards_become_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstack.program.clients.shard_index._MOST_SHARDS", 8)
    manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
    for client in range(50):
        states.update([client], [np.full(3, client, np.float32)])
        asyncio.run(manager.save(0, client + 1))
        assert len(names(tmp_path)) <= 9
    assert [states.get(client)[0] for client in range(50)] == list(range(50))


def test_large_states_have_files_of_their_own(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path, like=np.zeros(1 << 19, np.float32), keep_total=1, keep_first=False)
    for number in range(1, 4):
        states.update([1, 2, 3][:number], [np.full(1 << 19, number, np.float32)] * number)
        asyncio.run(manager.save(0, number))
        assert len(names(tmp_path)) == number
    assert [states.get(client)[-1] for client in (1, 2, 3)] == [3, 3, 3]


def test_a_version_has_the_updates_of_the_calls_before_its_save_whatever_is_in_it(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path, keep_total=0)
        await manager.load_latest(0)
        for number in range(1, 5):
            step(states.select(["a"]), [1.0])  # nobody waits for it
            await manager.save(number, number)
        assert [(await states.at(number)).get("a")[0] for number in range(1, 5)] == [1, 2, 3, 4]

    asyncio.run(run())


def test_an_update_beside_a_call_that_runs_is_refused(in_program) -> None:
    async def run() -> None:
        states = ClientStates(like=FIRST)
        _, count = step(states.select(["a"]), [1.0])
        with pytest.raises(ContextError, match="await its result first"):
            states.update(["a"], [FIRST])
        await count.get_value()
        states.update(["a"], [FIRST])
        assert states.get("a")[0] == 0.0

    asyncio.run(run())


def test_a_round_that_fails_is_not_saved_and_its_states_are_dropped(tmp_path: Path, in_program, caplog) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        await manager.load_latest(0)
        changed(states.select(["a", "b"]), [1.0, 1.0])
        await manager.save(1, 1)
        changed(states.select(["a", "c"]), [1.0, 1.0])
        changed(states.select(["b"]), [-1.0])  # nothing that is saved needs it
        with pytest.raises(LeafError, match="ValueError: no"):
            await manager.save(2, 2)
        assert await manager.get_versions() == [1]
        assert {one: states.get(one)[0] for one in states.client_ids} == {"a": 1.0, "b": 1.0}
        changed(states.select(["a", "b"]), [1.0, 2.0])
        await manager.save(2, 2)
        manager.close()
        manager, states = in_folder(tmp_path)
        assert await manager.load_latest(0) == (2, 2)
        assert {one: states.get(one)[0] for one in states.client_ids} == {"a": 2.0, "b": 3.0}

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_round_whose_values_fail_drops_its_states_too(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        await manager.load_latest([FIRST])
        changed(states.select(["a"]), [1.0])
        total, _ = step(ClientStates(like=FIRST).select(["x"]), [-1.0])
        with pytest.raises(LeafError):
            await manager.save([total], 1)
        assert states.client_ids == []

    asyncio.run(run())


def test_an_error_that_the_program_knows_is_not_raised_again_by_save(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        await manager.load_latest(0)
        changed(states.select(["a"]), [1.0])
        total, _ = step(states.select(["b"]), [-1.0])
        with pytest.raises(LeafError):
            await total.get_value()
        await manager.save(1, 1)
        assert states.client_ids == ["a"], "the other call was fine"

    asyncio.run(run())


def test_calls_and_saves_on_the_states_of_a_failed_round_fail(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        await manager.load_latest(0)
        changed(states.select(["a"]), [1.0])
        changed(states.select(["b"]), [-1.0])
        second = asyncio.create_task(manager.save(1, 1))
        third = manager.save(2, 2)
        later = step(states.select(["a"]), [1.0])[1]
        with pytest.raises(LeafError):
            await second
        with pytest.raises(ContextError, match="begin the round again"):
            await third
        with contextlib.suppress(ContextError):  # if it ended before the save
            await later.get_value()
        assert (states.client_ids, await manager.get_versions()) == ([], None)
        changed(states.select(["a"]), [5.0])
        await manager.save(1, 1)
        assert states.get("a")[0] == 5.0

    asyncio.run(run())


def test_a_call_updates_all_kinds_of_states_or_none(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        counts = ClientStates(tmp_path / "counts", like=np.int32(0), state_manager=manager)
        await manager.load_latest(0)
        (tmp_path / "counts").write_text("")  # so that it cannot become a folder
        first, _ = both(states.select(["a"]), counts.select(["a"]))
        with pytest.raises(ProgramStateError):
            await first.get_value()
        assert states.client_ids == counts.client_ids == []

    asyncio.run(run())


def test_a_folder_of_another_program_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    saved(tmp_path, 6)
    before = names(tmp_path)
    other = FileProgramStateManager(tmp_path / "other")
    states = ClientStates(tmp_path / "controls", like=FIRST, state_manager=other)
    both = rf"whose states are in .*other, found .*controls, .* {re.escape('remove')}"
    with pytest.raises(ProgramStateError, match=both):
        asyncio.run(other.load_latest(0))
    with pytest.raises(ProgramStateError, match=both):
        states.update(["a"], [FIRST])
    other.close()
    assert names(tmp_path) == before
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (6, 6)
    assert found(states) == expected(6)


def without_ids(folder: Path) -> None:
    """Removes the ids, which earlier versions did not write."""
    (folder / "controls" / ".program").unlink()
    (folder / "program" / ".program_state_id").unlink()


def test_folders_without_ids_are_loaded_and_get_them(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    without_ids(tmp_path)
    other = FileProgramStateManager(tmp_path / "other")
    ClientStates(tmp_path / "controls", like=FIRST, state_manager=other)
    with pytest.raises(ProgramStateError, match="belong to no version in .*other"):
        asyncio.run(other.load_latest(0))
    other.close()
    saved(tmp_path, 4)
    ids = [(tmp_path / name).read_bytes() for name in ("controls/.program", "program/.program_state_id")]
    assert ids[0] == ids[1]
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (4, 4)
    assert found(states) == expected(4)


def test_a_copy_of_both_folders_goes_on(tmp_path: Path) -> None:
    saved(tmp_path / "one", 3)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    saved(tmp_path / "two", 5)
    saved(tmp_path / "one", 4)
    manager, states = in_folder(tmp_path / "two")
    assert asyncio.run(manager.load_latest(0)) == (5, 5)
    assert found(states) == expected(5)


def test_files_that_fedstack_has_not_written_are_neither_removed_nor_overwritten(tmp_path: Path) -> None:
    (tmp_path / "controls").mkdir()
    for name in ("my.states", "00000000.states"):
        (tmp_path / "controls" / name).write_text("precious")
        manager, states = in_folder(tmp_path)
        for use in (lambda: asyncio.run(manager.load_latest(0)), lambda: states.update(["a"], [FIRST])):  # noqa: B023
            with pytest.raises(ProgramStateError, match=f"{name}, .*choose another folder"):
                use()
        manager.close()
        (tmp_path / "controls" / name).unlink()
    saved(tmp_path, 3)
    (tmp_path / "controls" / "my.states").write_text("precious")
    manager, states = in_folder(tmp_path)
    with pytest.raises(ProgramStateError, match=r"my\.states"):
        asyncio.run(manager.load_latest(0))
    assert (tmp_path / "controls" / "my.states").read_text() == "precious"


def test_an_older_version_that_is_loaded_leaves_the_files_of_newer_ones(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    manager, states = in_folder(tmp_path)
    asyncio.run(manager.load(1, 0))
    states.update(["client 0"], [np.full(3, 9, np.float32)])
    assert found(asyncio.run(states.at(3))) == expected(3)


def test_states_that_a_program_no_longer_declares_are_not_lost(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    manager = FileProgramStateManager(tmp_path / "program")
    renamed = ClientStates(tmp_path / "renamed", like=FIRST, state_manager=manager)
    asyncio.run(manager.load_latest(0))
    renamed.update(["a"], [FIRST])
    with pytest.raises(
        ProgramStateError, match=r"states of clients named controls.*found renamed; .*drop_client_states"
    ):
        asyncio.run(manager.save(4, 4))
    assert asyncio.run(manager.get_versions()) == [1, 2, 3]
    ClientStates(tmp_path / "controls", like=FIRST, state_manager=manager)  # also after the load
    asyncio.run(manager.save(4, 4))
    manager.close()
    manager = FileProgramStateManager(tmp_path / "program")  # without any states
    with pytest.raises(ProgramStateError, match="found none; "):
        asyncio.run(manager.save(5, 5))
    manager.close()


def test_states_are_dropped_on_purpose_and_stay_in_older_versions(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    manager = FileProgramStateManager(tmp_path / "program")
    asyncio.run(manager.load_latest(0))
    manager.drop_client_states("controls")
    asyncio.run(manager.save(4, 4))
    manager.close()
    manager = FileProgramStateManager(tmp_path / "program")
    assert asyncio.run(manager.load_latest(0)) == (4, 4)
    asyncio.run(manager.save(5, 5))
    states = ClientStates(tmp_path / "controls", like=FIRST, state_manager=manager)
    with pytest.raises(InvalidValueError, match="found that this program has declared them"):
        manager.drop_client_states("controls")
    assert found(asyncio.run(states.at(3))) == expected(3)
    assert states.client_ids == []
    manager.close()


def test_a_load_of_an_older_version_brings_its_states_back(tmp_path: Path, in_program) -> None:
    async def run() -> None:
        manager, states = in_folder(tmp_path)
        await manager.load_latest(0)
        for number in range(1, 4):
            changed(states.select(["a"]), [1.0])
            await manager.save(number, number)
        changed(states.select(["a"]), [1.0])
        late = step(states.select(["a"]), [1.0])[1]
        assert await manager.load(1, 0) == 1
        assert states.get("a")[0] == 1.0
        with contextlib.suppress(ContextError):  # if it ended before the load
            await late.get_value()
        assert states.get("a")[0] == 1.0
        total, _ = step(states.select(["a"]), [5.0])
        assert (await total.get_value())[0] == 6.0
        assert [(await states.at(number)).get("a")[0] for number in (1, 2, 3)] == [1, 2, 3]
        assert await FileProgramStateManager(tmp_path / "program").load(2, 0) == 2
        assert states.get("a")[0] == 6.0, "another manager looks at a version"
        await manager.save(4, 4)
        assert (await states.at(4)).get("a")[0] == 6.0

    asyncio.run(run())


def test_states_that_a_call_of_a_program_cannot_take_are_refused_before_it_runs(in_program) -> None:
    async def run() -> None:
        states = ClientStates(like=FIRST)
        with pytest.raises(TypeMismatchError, match=r"pass what select\(ids\) of them returns"):
            step(states, [1.0])
        with pytest.raises(TypeMismatchError, match="found an array of them; pass the list"):
            step(np.asarray(states.select(["a", "b"])), [1.0, 1.0])
        with pytest.raises(InvalidValueError, match="found 'a' twice"):
            step(states.select(["a", "a"]), [1.0, 1.0])

    asyncio.run(run())


def test_states_of_a_version_that_has_been_removed_are_named_as_such(tmp_path: Path) -> None:
    manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
    states.update(["a"], [FIRST])
    asyncio.run(manager.save(0, 1))
    first = asyncio.run(states.at(1))
    states.update(["a"], [FIRST])
    asyncio.run(manager.save(0, 2))
    states.update(["a"], [FIRST])
    asyncio.run(manager.save(0, 3))
    with pytest.raises(ProgramStateError, match="read the states of a version that is kept"):
        first.get("a")


def test_a_state_of_another_shape_is_refused_with_advice_that_states_can_follow() -> None:
    with pytest.raises(TypeMismatchError, match=r"found shape \[4\]; at the state of the client 'a'; .*like") as info:
        ClientStates(like=FIRST).update(["a"], [np.zeros(4, np.float32)])
    assert "None" not in str(info.value)


def test_a_file_that_cannot_be_removed_is_told_once_and_keeps_no_other(tmp_path: Path, monkeypatch, caplog) -> None:
    manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
    unlink, files = Path.unlink, set[str]()

    def in_use(path: Path, missing_ok: bool = False) -> None:
        if path.name in files:
            raise PermissionError(13, "in use", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", in_use)
    for number in range(1, 5):
        states.update(["a"], [np.full(3, number, np.float32)])
        asyncio.run(manager.save(number, number))
        files = files or set(names(tmp_path))
    assert len(names(tmp_path)) == 2, "the one in use and that of the last version"
    assert files < set(names(tmp_path))
    assert len([record for record in caplog.records if "in use" in record.getMessage()]) == 1
    manager.close()


def test_an_update_whose_copies_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    """States of which few are of use are copied, after the new ones have been written."""
    manager, states = in_folder(tmp_path)
    ids = [f"client {number}" for number in range(8)]
    states.update(ids, [np.full(3, number, np.float32) for number in range(8)])
    asyncio.run(manager.save(1, 1))
    written, count = FileShard.written, 0

    def once(*args, **options):
        nonlocal count
        count += 1
        if count > 1:
            raise ProgramStateError("the disk is full")
        return written(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(FileShard, "written", once)
        with pytest.raises(ProgramStateError, match="the disk is full"):
            states.update(["new", *ids[:6]], [np.full(3, 99, np.float32)] * 7)
    before = [number * np.ones(3) for number in range(8)]
    assert np.array_equal([states.get(client) for client in ids], before)
    assert states.client_ids == ids
    asyncio.run(manager.save(2, 2))
    states.update(["later"], [FIRST])
    asyncio.run(manager.save(3, 3))
    manager.close()
    manager, states = in_folder(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (3, 3)
    assert np.array_equal([states.get(client) for client in ids], before)
    assert states.client_ids == [*ids, "later"]
    manager.close()


def test_a_program_that_keeps_its_references_keeps_no_files(tmp_path: Path, in_program) -> None:
    async def run() -> list[object]:
        manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
        kept = []
        for number in range(1, 6):
            kept += step(states.select(["a"]), [1.0])
            await manager.save(number, number)
        return kept

    kept = asyncio.run(run())
    assert len(names(tmp_path)) == 1
    assert len(kept) == 10


def test_calls_and_saves_return_at_once_while_states_are_written(tmp_path: Path, in_program, monkeypatch) -> None:
    writes, goes_on = threading.Event(), threading.Event()
    written = FileShard.written

    def held(*args, **options):
        writes.set()
        assert goes_on.wait(20)
        return written(*args, **options)

    monkeypatch.setattr(FileShard, "written", held)

    async def run() -> float:
        manager, states = in_folder(tmp_path)
        step(states.select(["a"]), [1.0])
        assert await asyncio.to_thread(writes.wait, 20)
        total, _ = step(states.select(["a"]), [2.0])
        save = asyncio.create_task(manager.save(total, 1))
        goes_on.set()  # reached only if neither has waited
        await save
        return float(np.asarray(states.get("a"))[0])

    assert asyncio.run(run()) == 3.0


def test_one_result_for_all_clients_is_the_state_of_each(in_program) -> None:
    @fl.federated_computation(fl.FederatedType(CONTROL, fl.CLIENTS), fl.FederatedType(CONTROL, fl.SERVER))
    def replaced(controls, model):
        return fl.federated_broadcast(model), fl.federated_sum(controls)

    async def run() -> None:
        states = ClientStates(like=FIRST)
        count, _ = replaced(states.select(["a", "b"]), np.full(3, 7, np.float32))
        assert await count.get_value() == 2
        assert [states.get(client).tolist() for client in ("a", "b", "c")] == [[7] * 3, [7] * 3, [0] * 3]

    asyncio.run(run())


def test_the_error_of_a_client_of_a_program_names_its_id(in_program) -> None:
    async def run() -> None:
        states = ClientStates(like=FIRST)
        total, _ = step(states.select(["anna", "ben", "carl"]), [1.0, -1.0, 1.0])
        with pytest.raises(LeafError, match=r"raised ValueError: no; at client 1; whose id is 'ben'") as caught:
            await total.get_value()
        assert (caught.value.client_index, type(caught.value.__cause__)) == (1, ValueError)

    asyncio.run(run())


def test_what_a_call_writes_while_others_are_removed_stays(tmp_path: Path, monkeypatch) -> None:
    """A worker may write for a call that begins after it is known which files are of use."""
    manager, states = in_folder(tmp_path, keep_total=1, keep_first=False)
    states.update(["a"], [FIRST])
    asyncio.run(manager.save(1, 1))
    remove = FolderStore.remove_others

    def beside_a_call(store, spared):
        def and_then():
            found = spared()
            shutil.copy(tmp_path / "controls" / names(tmp_path)[-1], tmp_path / "controls" / "abc-1.states")
            return found

        remove(store, and_then)

    monkeypatch.setattr(FolderStore, "remove_others", beside_a_call)
    states.update(["a"], [FIRST + 1])
    asyncio.run(manager.save(2, 2))
    assert names(tmp_path) == ["00000001.states", "abc-1.states"]
    manager.close()
