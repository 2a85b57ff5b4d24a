"""Program logic that is written for the interfaces of Federated Language runs with fedstack's parts as it is.

It works as the language's own example does: all rounds are started before the first one has ended, states are saved and
metrics are released by tasks, and the iterator that draws clients is part of the state.
"""

import asyncio
import collections
import subprocess
import sys
import typing
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.program import (
    CSVFileReleaseManager,
    DatasetDataSource,
    FederatedContext,
    FileProgramStateManager,
    JSONLinesReleaseManager,
    MemoryProgramStateManager,
)
from fedstack.service.data import Dataset

ROUNDS, CLIENTS = 8, 3
TOTAL = fl.FederatedType(np.int64, fl.SERVER)
POINTS = fl.FederatedType(fl.SequenceType(fl.to_type(collections.OrderedDict(x=np.int64))), fl.CLIENTS)


class LoopState(typing.NamedTuple):
    total: object
    number: int
    clients: fl.program.FederatedDataSourceIterator


@fedstack.python_computation([POINTS.member], np.int64)
def sum_of(points):
    return np.int64(sum(int(point["x"]) for point in points))


@fedstack.python_computation([np.int64, np.int64], np.int64)
def added(x, y):
    return x + y


@fl.federated_computation()
def nothing_yet():
    return fl.federated_value(np.int64(0), fl.SERVER)


@fl.federated_computation(TOTAL, POINTS)
def one_round(total, points):
    found = fl.federated_sum(fl.federated_map(sum_of, points))
    return fl.federated_map(added, (total, found)), fl.federated_zip(collections.OrderedDict(found=found))


@fl.federated_computation(TOTAL, POINTS)
def judged(total, points):
    del total
    return fl.federated_zip(collections.OrderedDict(found=fl.federated_sum(fl.federated_map(sum_of, points))))


async def logic(source, held_out, rounds: int, *, metrics, evaluation, model, states) -> None:
    fl.program.check_in_federated_context()
    assert isinstance(fl.framework.get_context_stack().current, fl.program.FederatedContext)
    for computation in (one_round, judged):
        total_type, points_type = computation.type_signature.parameter
        assert total_type.is_assignable_from(nothing_yet.type_signature.result)
        assert points_type.is_assignable_from(source.federated_type)
        assert points_type.is_assignable_from(held_out.federated_type)
    clients, first = source.iterator(), 1
    total = await fl.program.materialize_value(nothing_yet())
    found, version = await states.load_latest(LoopState(total, 0, clients))
    if found is not None:
        total, first, clients = found.total, found.number + 1, found.clients
    tasks = []
    for number in range(first, rounds + 1):
        total, measured = one_round(total, clients.select(CLIENTS))
        tasks.append(asyncio.create_task(metrics.release(measured, key=number)))
        version += 1
        tasks.append(asyncio.create_task(states.save(LoopState(total, number, clients), version)))
    tasks.append(asyncio.create_task(evaluation.release(judged(total, held_out.iterator().select(CLIENTS)), key=None)))
    tasks.append(asyncio.create_task(model.release(total, key=None)))
    await asyncio.gather(*tasks)


def data_source(seed: int) -> DatasetDataSource:
    points = {"who": np.arange(60) % 20, "x": np.arange(60) ** 2}
    return DatasetDataSource(Dataset.from_arrays(points).by_client("who"), seed=seed)


def train(folder: Path, context: str, grouped: bool, states=None) -> None:
    inner = fedstack.create_async_local_execution_context()
    of_language = context == "language"
    states = states or FileProgramStateManager(folder / "states", keep_total=0)
    waits = states if isinstance(states, FileProgramStateManager) else None
    metrics = CSVFileReleaseManager(folder / "metrics.csv", state_manager=waits, key_fieldname="round")
    program = logic(
        data_source(1), data_source(2), ROUNDS, states=states,
        metrics=fl.program.GroupingReleaseManager([metrics]) if grouped else metrics,
        evaluation=CSVFileReleaseManager(folder / "evaluation.csv"),
        model=JSONLinesReleaseManager(folder / "model.jsonl"),
    )  # fmt: skip
    with fedstack.use_context(fl.program.NativeFederatedContext(inner) if of_language else FederatedContext(inner)):
        asyncio.run(program)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from test_program_logic import train
left, replace = int(sys.argv[3]), os.replace

def killed_after(source, target):
    global left
    replace(source, target)
    left -= Path(target).name.startswith("program_state_")
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = killed_after
train(Path(sys.argv[2]), sys.argv[4], bool(int(sys.argv[5])))
"""


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".run"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
@pytest.mark.parametrize("context", ["fedstack", "language"])
def test_logic_that_saves_in_tasks_and_is_killed_ends_with_the_same_files(tmp_path: Path, context, grouped) -> None:
    train(tmp_path / "undisturbed", context, grouped)
    arguments = [__file__, str(tmp_path / "killed"), "3", context, str(int(grouped))]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=120, check=False)
    assert killed.returncode == -9
    before = files(tmp_path / "killed")
    assert sorted(name for name in before if name.startswith("states")) == [
        f"states/program_state_{version}" for version in (1, 2, 3)
    ]
    train(tmp_path / "killed", context, grouped)
    found = files(tmp_path / "killed")
    assert found == files(tmp_path / "undisturbed")
    assert {name: found[name] for name in before if name.startswith("states")} == {
        name: content for name, content in before.items() if name.startswith("states")
    }
    assert found["metrics.csv"].count(b"\n") == ROUNDS + 1


def test_states_in_memory_have_the_iterator_of_their_round(tmp_path: Path) -> None:
    states = MemoryProgramStateManager()
    train(tmp_path, "fedstack", False, states)

    async def drawn(version: int):
        source = data_source(1)
        state = await states.load(version, LoopState(0, 0, source.iterator()))
        return [[int(point["x"]) for point in data] for data in state.clients.select(CLIENTS)]

    fresh = data_source(1).iterator()
    expected = [[[int(p["x"]) for p in data] for data in fresh.select(CLIENTS)] for _ in range(ROUNDS)]
    assert [asyncio.run(drawn(version)) for version in range(1, ROUNDS)] == expected[1:]
