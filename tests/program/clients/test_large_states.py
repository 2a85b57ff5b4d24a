"""States that are large together, which a call in this process writes while its clients run."""

import asyncio
import glob
import itertools
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack import ClientStates
from fedstack.data.client_states import state_shards
from fedstack.errors import LeafError, ProgramStateError
from fedstack.foundations.deadline import Deadline
from fedstack.program import FederatedContext, FileProgramStateManager

pytestmark = pytest.mark.slow

STATE = fl.TensorType(np.float32, [65536])
FIRST = np.zeros(STATE.shape, np.float32)
CLIENTS, LAST, WALL = 24, 100.0, 20.0


@fedstack.python_computation([STATE, fl.TensorType(np.float32), fl.TensorType(np.str_)], STATE)
def moved(state, x, folder):
    """Adds a number, and puts the number of files in the first place. The last client waits until there are some."""
    if x < 0:
        raise ValueError("no")
    pattern = f"{folder.decode()}/*.states"
    files = glob.glob(pattern)
    for _ in Deadline(WALL).attempts_blocking(itertools.repeat(0.01)):
        if files or x < LAST:
            break
        files = glob.glob(pattern)
    state = state + x
    state[0] = len(files)
    return state


@fl.federated_computation(
    fl.FederatedType(STATE, fl.CLIENTS),
    fl.FederatedType(np.float32, fl.CLIENTS),
    fl.FederatedType(np.str_, fl.SERVER),
)
def step(states, xs, folder):
    return fl.federated_map(moved, (states, xs, fl.federated_broadcast(folder)))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_shards, "_BATCH_BYTES", 4 * FIRST.nbytes)


def opened(folder: Path) -> tuple[FileProgramStateManager, ClientStates]:
    manager = FileProgramStateManager(folder / "program", keep_total=1, keep_first=False)
    return manager, ClientStates(folder / "states", like=FIRST, state_manager=manager)


def run_rounds(folder: Path, rounds: int, xs: list[float], **options) -> list[float]:
    """Runs and saves rounds, and returns how many files each client of the last one has seen."""
    manager, states = opened(folder)
    inner = fedstack.create_async_local_execution_context(**options)

    async def program() -> None:
        _, last = await manager.load_latest(0)
        for number in range(last + 1, rounds + 1):
            await fl.program.materialize_value(step(states.select(range(len(xs))), xs, str(folder / "states")))
            await manager.save(number, number)

    try:
        with fedstack.use_context(FederatedContext(inner)):
            asyncio.run(program())
        return [float(np.asarray(states.get(client))[0]) for client in range(len(xs))]
    finally:
        inner.close()
        manager.close()


def values_in(folder: Path) -> list[float]:
    """Returns the states that a later process finds."""
    manager, states = opened(folder)
    asyncio.run(manager.load_latest(0))
    found = [np.asarray(states.get(client)) for client in range(CLIENTS)]
    manager.close()
    assert all(len(set(state[1:].tolist())) == 1 for state in found)
    return [float(state[1]) for state in found]


def test_states_are_written_while_later_clients_run_and_come_back(tmp_path: Path) -> None:
    xs = [*(0.1 * client for client in range(CLIENTS - 1)), LAST]
    seen = run_rounds(tmp_path, 1, xs)
    assert (seen[0], bool(seen[-1])) == (0, True)
    run_rounds(tmp_path, 2, xs)
    assert values_in(tmp_path) == [float(np.float32(x) + np.float32(x)) for x in xs]
    assert len(list((tmp_path / "states").glob("*.states"))) <= CLIENTS


def test_clients_that_fail_keep_their_states(tmp_path: Path) -> None:
    run_rounds(tmp_path, 1, [1.0] * CLIENTS)
    failing = [-1.0 if client % 5 == 2 else 1.0 for client in range(CLIENTS)]
    run_rounds(tmp_path, 2, failing, client_failures=fedstack.ClientFailures(tolerate=CLIENTS))
    assert values_in(tmp_path) == [1.0 if x < 0 else 2.0 for x in failing]


def test_what_a_failed_call_has_written_does_not_count_and_is_removed(tmp_path: Path) -> None:
    run_rounds(tmp_path, 1, [1.0] * CLIENTS)
    before = sorted(path.name for path in (tmp_path / "states").glob("*.states"))
    with pytest.raises(LeafError, match="no"):
        run_rounds(tmp_path, 2, [*[1.0] * (CLIENTS - 1), -1.0])
    assert values_in(tmp_path) == [1.0] * CLIENTS
    run_rounds(tmp_path, 2, [1.0] * CLIENTS)
    assert values_in(tmp_path) == [2.0] * CLIENTS
    assert not set(before) & {path.name for path in (tmp_path / "states").glob("*.states")}


def test_a_disk_that_fails_is_an_error_of_the_call_that_leaves_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_rounds(tmp_path, 1, [1.0] * CLIENTS)

    def fail(*_: object, **__: object) -> None:
        raise ProgramStateError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(state_shards.FileShard, "written", fail)
        with pytest.raises(ProgramStateError, match="the disk is full"):
            run_rounds(tmp_path, 2, [1.0] * CLIENTS)
    assert values_in(tmp_path) == [1.0] * CLIENTS
