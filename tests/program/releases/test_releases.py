"""Release managers that write files: rows, keys that are released again, and releases that are part of a state."""

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest

from fedstack import ClientFailure
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.program import CSVFileReleaseManager, FileProgramStateManager, JSONLinesReleaseManager


def run(coroutine):
    return asyncio.run(coroutine)


def rows(path: Path) -> list[dict]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text().splitlines()]


KINDS = {"csv": CSVFileReleaseManager, "jsonl": JSONLinesReleaseManager}


@pytest.fixture(params=list(KINDS))
def kind(request) -> str:
    return request.param


def test_each_key_is_a_row_and_one_that_is_released_again_replaces_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"metrics.{kind}"
    manager = KINDS[kind](path)
    for key, loss in ((1, 0.5), (2, 0.25), (1, 0.75)):
        run(manager.release({"loss": np.float32(loss)}, key))
    assert [(int(row["key"]), float(row["loss"])) for row in rows(path)] == [(1, 0.75), (2, 0.25)]
    run(KINDS[kind](path).release({"loss": 0.125}, 2))  # in a later process
    assert [(int(row["key"]), float(row["loss"])) for row in rows(path)] == [(1, 0.75), (2, 0.125)]


def test_of_rows_with_one_key_in_a_version_the_last_stays_in_all_later_processes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"metrics.{kind}"

    def opened() -> tuple[FileProgramStateManager, Any]:
        states = FileProgramStateManager(tmp_path / "states")
        return states, KINDS[kind](path, state_manager=states)

    states, metrics = opened()
    for loss in (0.5, 0.25):
        run(metrics.release({"loss": loss}, 1))
    run(states.save(0, 1))
    for _ in range(3):
        assert [float(row["loss"]) for row in rows(path)] == [0.25]
        states.close()
        states, metrics = opened()
        run(states.load_latest(0))


def test_a_csv_file_has_a_column_for_each_member(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    manager = CSVFileReleaseManager(path, key_fieldname="round")
    run(manager.release({"train": {"loss": np.float64(0.1), "name": 'a "b",\nc'}, "hits": np.array([[1, 2]])}, 1))
    run(manager.release({"train": {"loss": np.nan}, "new": True, "text": b"x"}, "last"))
    assert path.read_bytes().decode() == (
        "round,hits,train/loss,train/name,new,text\n"
        '1,"[[1, 2]]",0.1,"a ""b"",\nc",,\n'
        "last,,NaN,,true,x\n"
    )  # fmt: skip
    before = path.read_bytes()
    run(
        CSVFileReleaseManager(path, key_fieldname="round").release(
            {"train": {"loss": np.nan}, "new": True, "text": "x"}, "last"
        )
    )
    assert path.read_bytes() == before


def test_single_values_and_values_without_a_key_are_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"model.{kind}"
    manager = KINDS[kind](path)
    run(manager.release(np.arange(3), None))
    run(manager.release(np.arange(4), None))
    (row,) = rows(path)
    assert row["value"] in ([0, 1, 2, 3], "[0, 1, 2, 3]")
    run(KINDS[kind](path).release(np.arange(2), None))
    assert len(rows(path)) == 1


def test_references_are_awaited(tmp_path: Path, kind: str) -> None:
    class Reference(fl.program.MaterializableValueReference):
        type_signature = fl.TensorType(np.int32)

        async def get_value(self):
            return np.int32(5)

    run(KINDS[kind](tmp_path / f"m.{kind}").release({"x": Reference()}, 1))
    assert int(rows(tmp_path / f"m.{kind}")[0]["x"]) == 5


def test_what_cannot_be_released_is_named(tmp_path: Path, kind: str) -> None:
    manager = KINDS[kind](tmp_path / f"m.{kind}")
    with pytest.raises(InvalidValueError, match="found .* at x; convert it"):
        run(manager.release({"x": object()}, 1))
    with pytest.raises(InvalidValueError, match="at losses/1; release the values of the other clients"):
        run(manager.release({"losses": [1.0, ClientFailure(1, 0, ValueError("no"))]}, 1))
    with pytest.raises(InvalidValueError, match="a whole number or a string as a key, found float 1.5"):
        run(manager.release({"x": 1}, 1.5))
    with pytest.raises(InvalidValueError, match="without the name 'key'"):
        run(manager.release({"key": 1}, 1))
    assert not (tmp_path / f"m.{kind}").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"no,such\n1,2\n", b"key,a\n1,2,3\n", b"[1]\n", b'{"a": 1}\n'])
def test_another_kind_of_file_is_refused_and_stays(tmp_path: Path, kind: str, content: bytes) -> None:
    path = tmp_path / f"m.{kind}"
    path.write_bytes(content)
    with pytest.raises(ProgramStateError, match="found another kind of file"):
        run(KINDS[kind](path).release({"x": 1}, 1))
    assert path.read_bytes() == content


def test_a_row_is_released_with_the_state_that_is_saved_after_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"m.{kind}"
    states = FileProgramStateManager(tmp_path / "states")
    manager = KINDS[kind](path, state_manager=states)
    run(manager.release({"loss": 0.5}, 1))
    assert not path.exists()
    run(states.save(1, 1))
    assert [int(row["key"]) for row in rows(path)] == [1]
    run(manager.release({"loss": 0.25}, 2))
    states.close()

    later = FileProgramStateManager(tmp_path / "states")  # the process has ended before it has saved the second state
    KINDS[kind](path, state_manager=later)
    assert run(later.load_latest(0)) == (1, 1)
    assert [int(row["key"]) for row in rows(path)] == [1]


def test_a_row_that_is_missing_in_the_file_is_released_when_the_state_is_loaded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"m.{kind}"
    states = FileProgramStateManager(tmp_path / "states")
    manager = KINDS[kind](path, state_manager=states)
    for key in (1, 2):
        run(manager.release({"loss": key / 4}, key))
        before = path.read_bytes() if path.exists() else b""
        run(states.save(key, key))
    states.close()
    complete = path.read_bytes()
    path.write_bytes(before)  # as if the process had been killed between the state and the file
    later = FileProgramStateManager(tmp_path / "states")
    KINDS[kind](path, state_manager=later)
    run(later.load_latest(0))
    assert path.read_bytes() == complete


def test_a_state_has_the_rows_that_were_released_before_and_no_others(tmp_path: Path, kind: str) -> None:
    class Reference(fl.program.MaterializableValueReference):
        type_signature = fl.TensorType(np.int32)

        def __init__(self, gate: asyncio.Event, value: int) -> None:
            self.gate, self.value = gate, value

        async def get_value(self):
            await self.gate.wait()
            return np.int32(self.value)

    async def program() -> None:
        states = FileProgramStateManager(tmp_path / "states")
        manager = KINDS[kind](tmp_path / f"m.{kind}", state_manager=states)
        gates = [asyncio.Event() for _ in range(3)]
        tasks = []
        for key, gate in enumerate(gates):
            tasks.append(asyncio.create_task(manager.release({"x": Reference(gate, key)}, key)))
            tasks.append(asyncio.create_task(states.save(key, key)))
        gates[1].set()
        gates[0].set()
        await tasks[1]  # waits for its row, and for no later one
        assert [row["key"] for row in manager.rows()] == [0]
        await tasks[3]
        assert [row["key"] for row in manager.rows()] == [0, 1]
        assert not tasks[5].done()
        gates[2].set()
        await asyncio.gather(*tasks)
        assert [row["x"] for row in manager.rows()] == [0, 1, 2]
        with pytest.raises(InvalidValueError, match="found .* at x; convert it"):
            await manager.release({"x": object()}, 3)
        await states.save(3, 3)  # a release that failed is no part of a state
        assert len(manager.rows()) == 3

    run(program())


def test_two_files_of_one_name_cannot_be_part_of_the_same_states(tmp_path: Path) -> None:
    states = FileProgramStateManager(tmp_path)
    CSVFileReleaseManager(tmp_path / "a" / "m.csv", state_manager=states)
    with pytest.raises(InvalidValueError, match=r"found 'm\.csv' twice"):
        CSVFileReleaseManager(tmp_path / "b" / "m.csv", state_manager=states)


def test_two_managers_of_one_file_keep_the_rows_of_both(tmp_path: Path, kind: str) -> None:
    one, other = (KINDS[kind](tmp_path / "metrics") for _ in range(2))
    for number in range(4):
        run((one, other)[number % 2].release(number, number))
    run(other.release("again", 0))
    for manager in (one, other):
        assert [tuple(row.values()) for row in manager.rows()] == [(0, "again"), (1, 1), (2, 2), (3, 3)]
