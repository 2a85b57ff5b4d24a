"""Rounds that read and update states of clients, for tests of where the states are."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from watching import Diary

import fedstack
from fedstack import ClientStates
from fedstack.observe.events import PhaseEnded
from fedstack.program import FederatedContext, FileProgramStateManager

SIZE = 20_000
STATE = fl.TensorType(np.float32, [SIZE])
BOTH = fl.to_type({"state": STATE, "x": np.float32})
FIRST = np.linspace(0, 1, SIZE, dtype=np.float32)


@fedstack.python_computation([BOTH], STATE)
def moved(one):
    if one["x"] < 0:
        raise ValueError("no")
    return one["state"] * np.float32(0.7) + one["x"]


@fedstack.python_computation(STATE, np.float32)
def last_of(state):
    return state[-1]


@fedstack.python_computation([STATE, np.float32], STATE)
def centred(state, mean):
    return state - mean


def step_of(move) -> object:
    """Returns a round of two phases, of which the second reads what the first has returned at clients."""

    @fl.federated_computation(fl.FederatedType(BOTH, fl.CLIENTS))
    def step(ones):
        changed = fl.federated_map(move, ones)
        mean = fl.federated_mean(fl.federated_map(last_of, changed))
        return mean, fl.federated_map(centred, (changed, fl.federated_broadcast(mean)))

    return step


step = step_of(moved)


def states_in(folder: Path) -> tuple[FileProgramStateManager, ClientStates]:
    manager = FileProgramStateManager(folder / "program", keep_total=1, keep_first=False)
    return manager, ClientStates(folder / "memories", like=FIRST, state_manager=manager)


def ones_of(states: ClientStates, number: int) -> tuple[list[int], list[object]]:
    """Returns the clients of a round, six of nine, and what they have."""
    ids = [(number * 4 + place) % 9 for place in range(6)]
    return ids, [{"state": state, "x": float(client)} for client, state in zip(ids, states.select(ids))]


def trained(folder: Path, rounds: range) -> list[bytes]:
    """Runs rounds outside of a program, and returns all that came out of them, and all states."""
    manager, states = states_in(folder)
    _, last = asyncio.run(manager.load_latest(0))
    assert last == rounds.start - 1
    found: list[bytes] = []
    for number in rounds:
        ids, ones = ones_of(states, number)
        mean, changed = step(ones)
        states.update(ids, changed)
        asyncio.run(manager.save(number, number))
        found.append(np.asarray(mean).tobytes())
    found += all_of(states)
    manager.close()
    return found


def all_of(states: ClientStates) -> list[bytes]:
    return [np.asarray(states.get(client)).tobytes() for client in range(9)]


def trained_in_program(folder: Path, rounds: range, targets: object, **options: object) -> list[bytes]:
    """Runs rounds in a program, whose context updates the states; see `trained`."""

    async def run() -> list[bytes]:
        manager, states = states_in(folder)
        _, last = await manager.load_latest(0)
        assert last == rounds.start - 1
        found: list[bytes] = []
        for number in rounds:
            _, ones = ones_of(states, number)
            mean, _ = step(ones)
            await manager.save(number, number)
            found.append(np.asarray(await mean.get_value()).tobytes())
        found += all_of(states)
        manager.close()
        return found

    with fedstack.create_async_remote_execution_context(targets, **options) as context:
        with fedstack.use_context(FederatedContext(context)):
            found = asyncio.run(run())
    check_files(folder)
    return found


def check_files(folder: Path) -> None:
    """Checks that the next process finds the files of the last version, and nothing else is left."""
    manager, _ = states_in(folder)
    _, last = asyncio.run(manager.load_latest(0))
    saved = asyncio.run(manager.releases_of(last, "memories"))
    assert files_in(folder) == sorted(name for name, _ in saved["shards"])
    manager.close()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "memories").glob("*.states"))


def numbers_of(diary: Diary, targets: Sequence[str], number: str) -> list[list[int]]:
    """Returns a number of the phases of each worker, in their order."""
    phases = [one for one in diary.of(PhaseEnded) if one.bytes_sent]
    return [[getattr(one, number) for one in phases if one.worker in target] for target in targets]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What four rounds give, wherever the states are."""
    with fedstack.create_sync_local_execution_context():
        return trained(tmp_path_factory.mktemp("local"), range(1, 5))
