"""States of clients that were saved when a program declared another structure."""

import asyncio
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from grpc_fixture import grpc_is_up as grpc_is_up

import fedstack
from fedstack import ClientStates
from fedstack.errors import InvalidValueError, ProgramStateError, TypeMismatchError
from fedstack.program import FederatedContext, FileProgramStateManager, Run
from fedstack.service.pool.worker_pool import local_worker_pool

OLD = {"control": np.zeros(2, np.float32), "steps": np.int32(0)}
NEW = np.zeros(3, np.float64)
CLIENTS = ["a", "b", "c"]
NEW_TYPE = fl.FederatedType(fl.TensorType(np.float64, [3]), fl.CLIENTS)


def joined(values):
    """Returns the control and then the steps, in one array."""
    return np.array([*values["control"], values["steps"]], np.float64)


@fedstack.python_computation([NEW_TYPE.member], NEW_TYPE.member)
def plus_one(state):
    return state + 1


@fl.federated_computation(NEW_TYPE)
def step(states):
    return fl.federated_map(plus_one, states)


def opened(folder: Path, like: object, **options) -> tuple[FileProgramStateManager, ClientStates]:
    manager = FileProgramStateManager(folder / "program")
    return manager, ClientStates(folder / "states", like=like, state_manager=manager, **options)


def load(manager: FileProgramStateManager) -> int:
    return asyncio.run(manager.load_latest(0))[1]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two versions with old states, in files of their own."""
    manager, states = opened(tmp_path, OLD)
    for version, client in ((1, "a"), (2, "b")):
        states.update([client], [{"control": np.full(2, version, np.float32), "steps": np.int32(10 * version)}])
        asyncio.run(manager.save(version, version))
    manager.close()
    return tmp_path


def rows(states) -> list[list[float]]:
    return [np.asarray(states.get(client)).tolist() for client in CLIENTS]


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "states").glob("*.states")}


def test_states_of_another_structure_are_read_as_the_program_converts_them(saved: Path) -> None:
    before = names(saved)
    manager, states = opened(saved, NEW, migrate=joined)
    assert load(manager) == 2
    assert rows(states) == [[1, 1, 10], [2, 2, 20], [0, 0, 0]]
    assert states.client_ids == ["a", "b"]
    assert rows(asyncio.run(states.at(1))) == [[1, 1, 10], [0, 0, 0], [0, 0, 0]]
    assert names(saved) == before, "reading changes nothing"
    manager.close()


def test_the_first_update_writes_all_states_as_they_are_now_and_versions_stay(saved: Path) -> None:
    manager, states = opened(saved, NEW, migrate=joined)
    load(manager)
    states.update(["c"], [np.full(3, 7.0)])
    asyncio.run(manager.save(3, 3))
    manager.close()
    manager, states = opened(saved, NEW)
    assert load(manager) == 3
    assert rows(states) == [[1, 1, 10], [2, 2, 20], [7, 7, 7]]
    with pytest.raises(
        InvalidValueError, match=r"float64\[3\].*found control float32\[2\], steps int32\[\]; pass .*migrate="
    ):
        asyncio.run(states.at(2))
    manager.close()
    manager, states = opened(saved, OLD)
    asyncio.run(manager.load(2, 0))
    assert states.get("b")["steps"] == 20
    manager.close()


@pytest.mark.slow
def test_workers_that_share_the_folder_get_converted_states_and_then_read_them_there(saved: Path) -> None:
    manager, states = opened(saved, NEW, migrate=joined)
    with (
        local_worker_pool(2, client_states=[saved]) as pool,
        fedstack.create_async_remote_execution_context(pool) as inner,
    ):

        async def program() -> list[str | None]:
            await manager.load_latest(0)
            ids = [states.store_id]
            for version in (3, 4):
                await fl.program.materialize_value(step(states.select(CLIENTS)))
                await manager.save(version, version)
                ids.append(states.store_id)
            return ids

        with fedstack.use_context(FederatedContext(inner)):
            first, *later = asyncio.run(program())
    assert first is None
    assert None not in later
    assert rows(states) == [[3, 3, 12], [4, 4, 22], [2, 2, 2]]
    manager.close()


def test_a_run_converts_the_states_of_its_clients(tmp_path: Path) -> None:
    async def program(like, migrate, value) -> object:
        with Run(tmp_path / "run") as run:
            states = run.client_states("memories", like=like, migrate=migrate)
            _, version = await run.states.load_latest(0)
            states.update(["a"], [value(states.get("a"))])
            await run.states.save(version + 1, version + 1)
            return states.get("a")

    asyncio.run(program(np.float32(0), None, lambda old: old + np.float32(2)))
    found = asyncio.run(program(np.zeros(2), lambda values: np.full(2, values[""], np.float64), lambda old: old * 3))
    assert np.asarray(found).tolist() == [6, 6]


def test_a_function_that_fails_or_returns_something_else_is_named_with_the_client(saved: Path) -> None:
    manager, states = opened(saved, NEW, migrate=lambda values: values["momentum"])
    load(manager)
    with pytest.raises(InvalidValueError, match=r"the state of the client 'a' in .*KeyError.*control.*steps") as caught:
        states.get("a")
    assert isinstance(caught.value.__cause__, KeyError)
    manager.close()
    manager, states = opened(saved, NEW, migrate=lambda values: values["control"])
    load(manager)
    with pytest.raises(TypeMismatchError, match=r"what migrate returns for the client 'b'"):
        states.get("b")
    with pytest.raises(TypeMismatchError, match=r"what migrate returns for the client"):
        states.update(["c"], [np.ones(3)])
    assert np.asarray(states.get("c")).tolist() == [0, 0, 0], "no client has a new state"
    assert states.client_ids == ["a", "b"]
    manager.close()
    with pytest.raises(InvalidValueError, match="Expected a function as migrate, found int 3"):
        opened(saved, NEW, migrate=3)


def test_states_that_were_declared_with_an_error_are_not_lost_and_may_be_declared_again(saved: Path) -> None:
    manager = FileProgramStateManager(saved / "program")
    load(manager)
    with pytest.raises(InvalidValueError, match=r"found control float32\[2\], steps int32\[\]; pass .*migrate="):
        ClientStates(saved / "states", like=NEW, state_manager=manager)
    with pytest.raises(ProgramStateError, match="Expected the states of clients named states"):
        asyncio.run(manager.save(3, 3))
    states = ClientStates(saved / "states", like=NEW, state_manager=manager, migrate=joined)
    asyncio.run(manager.save(3, 3))
    assert rows(states) == [[1, 1, 10], [2, 2, 20], [0, 0, 0]]
    manager.close()


def test_states_as_they_are_now_are_not_converted(saved: Path) -> None:
    def refuse(values):
        raise AssertionError(values)

    manager, states = opened(saved, OLD, migrate=refuse)
    load(manager)
    assert states.get("a")["steps"] == 10
    manager.close()
