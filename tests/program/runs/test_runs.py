"""A run as a thing: what it writes down, and what it refuses."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedstack
from fedstack.errors import ClosedError, InvalidValueError, ProgramStateError, TypeMismatchError
from fedstack.program import CSVFileReleaseManager, Run


def test_a_run_has_states_metrics_and_a_record(tmp_path: Path) -> None:
    async def program() -> None:
        with Run(tmp_path / "a" / "b", seed=np.int64(3), parameters={"rate": np.float32(0.5), "deep": True}) as run:
            assert await run.states.load_latest(0) == (None, 0)
            await run.metrics.release({"loss": 0.25}, 1)
            await run.states.save(7, 1)
            assert (run.seed, dict(run.parameters)) == (3, {"rate": 0.5, "deep": True})
            assert repr(run).endswith(f" in {tmp_path / 'a' / 'b'}>")
        with pytest.raises(ClosedError), run:
            pass

    asyncio.run(program())
    folder = tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.csv", "run.json", "states"]
    assert (folder / "metrics.csv").read_text() == "round,loss\n1,0.25\n"
    record = json.loads((folder / "run.json").read_text())
    assert (record["seed"], record["parameters"], record["folder"]) == (3, {"rate": 0.5, "deep": True}, os.getcwd())
    assert record["fedstack"] == fedstack.__version__
    assert record["command"][0] == sys.executable


SHOW = """
import asyncio, sys
from fedstack.program import Run
with Run(sys.argv[1]) as run:
    print(run.record.name, run.record.command[1:])
"""


def test_a_record_has_the_command_and_nothing_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "train me.py").write_text(SHOW)
    environment = {**os.environ, "WANDB_API_KEY": "a-secret-of-mine"}
    command = [sys.executable, "-X", "utf8", "train me.py", "run", "--rate=0.5"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "train me.py ('-X', 'utf8', 'train me.py', 'run', '--rate=0.5')\n"
    content = (tmp_path / "run" / "run.json").read_text()
    assert json.loads(content)["command"] == command
    assert "secret" not in content


def test_a_run_goes_on_with_its_seed_and_its_parameters_only(tmp_path: Path) -> None:
    given = {"seed": 3, "parameters": {"rate": 0.5, "name": "x", "limit": float("nan")}}
    Run(tmp_path, **given).close()
    before = (tmp_path / "run.json").read_bytes()
    Run(tmp_path, **given).close()
    assert (tmp_path / "run.json").read_bytes() == before
    with pytest.raises(InvalidValueError) as caught:
        Run(tmp_path, seed=4, parameters={"rate": 0.1, "name": "x", "limit": float("nan"), "new": 1})
    assert str(caught.value) == (
        f"Expected the seed = 3, rate = 0.5, new = none in the run {tmp_path}, as it was begun, found the seed = 4, "
        "rate = 0.1, new = 1; pass what it was begun with, or choose another folder"
    )
    with pytest.raises(
        InvalidValueError, match='Expected name = "x", limit = NaN in .*, found name = none, limit = none'
    ):
        Run(tmp_path, seed=3, parameters={"rate": 0.5})
    assert (tmp_path / "run.json").read_bytes() == before
    Run(tmp_path, **given).close()  # who was refused has not kept the lock


def test_a_run_that_is_open_is_refused_and_its_record_stays(tmp_path: Path) -> None:
    with Run(tmp_path, seed=1, name="first") as run:
        with pytest.raises(ProgramStateError, match="found that the run 'first' of this process uses it"):
            Run(tmp_path, seed=1, name="second")
        assert json.loads((tmp_path / "run.json").read_text())["name"] == "first"
        assert run.states is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "found a damaged file"),
        (b"\xff", "found a damaged file"),
        (b"[]", "found a file of something else"),
        (b'{"run": 1}', "found a file of something else"),
        (b'{"format": 2, "fedstack": "9.9"}', "found format 2, which fedstack 9.9 wrote"),
        (b'{"format": 1, "fedstack": "0", "name": "x"}', "lacks a part"),
    ],
)
def test_another_record_is_refused_and_stays(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ProgramStateError, match=message):
        Run(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == content


def test_arguments_that_no_run_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="the path of a folder as folder, found ''"):
        Run("")
    for wrong in ({"x": [1]}, {"x": None}, {1: 2}):
        with pytest.raises(InvalidValueError, match="numbers, strings and booleans as the parameters of a run"):
            Run(tmp_path / "run", parameters=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match="Expected seed to be an integer"):
        Run(tmp_path / "run", seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"Expected Mapping as parameters, found int 3"):
        Run(tmp_path / "run", parameters=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="a name of printable characters as name, found int 3"):
        Run(tmp_path / "run", name=3)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_metrics_after_the_last_state_are_written_at_the_end_unless_it_is_an_error(tmp_path: Path) -> None:
    async def program(ends_well: bool) -> None:
        with Run(tmp_path / str(ends_well)) as run:
            await run.metrics.release({"loss": 1.0}, 1)
            await run.states.save(0, 1)
            await run.metrics.release({"loss": 0.5}, "evaluation")
            if not ends_well:
                raise ValueError("an error of the program")

    asyncio.run(program(True))
    with pytest.raises(ValueError, match="an error of the program"):
        asyncio.run(program(False))
    assert (tmp_path / "True" / "metrics.csv").read_text() == "round,loss\n1,1.0\nevaluation,0.5\n"
    assert (tmp_path / "False" / "metrics.csv").read_text() == "round,loss\n1,1.0\n"


def test_metrics_of_rounds_that_a_run_has_left_are_removed_when_it_goes_on(tmp_path: Path, caplog) -> None:
    async def program(rounds: int, every: int) -> None:
        with Run(tmp_path) as run:
            _, last = await run.states.load_latest(0)
            for number in range(last + 1, rounds + 1):
                if number % every == 0:
                    await run.metrics.release({"a": number}, number)
                await run.states.save(number, number)
                if number == last + 1:
                    await run.metrics.release({"a": 0}, "first")
            await run.metrics.release({"a": -1}, 100)

    def keys() -> list[object]:
        return [row["round"] for row in CSVFileReleaseManager(tmp_path / "metrics.csv", key_fieldname="round").rows()]

    asyncio.run(program(8, 1))
    assert keys() == [1, "first", *range(2, 9), 100]
    for version in (6, 7, 8):
        (tmp_path / "states" / f"program_state_{version}").unlink()
    asyncio.run(program(5, 1))  # to look removes nothing
    assert keys() == [1, "first", *range(2, 9), 100]
    asyncio.run(program(8, 4))
    assert keys() == [1, "first", *range(2, 6), 8, 100]
    assert "Removed 4 rows of the rounds 6 to 100 from" in caplog.text
    shutil.rmtree(tmp_path / "states")
    asyncio.run(program(2, 2))
    assert keys() == ["first", 2, 100]


def test_a_run_that_goes_back_has_the_metrics_of_the_version_that_it_goes_on_from(tmp_path: Path) -> None:
    async def program(back: bool) -> list[dict[str, object]]:
        with Run(tmp_path) as run:
            if back:
                await run.states.load(1, 0)
                await run.metrics.release({"a": 20}, 2)
                await run.states.save(0, 3)
                return run.metrics.rows()
            for number, released in ((1, {1: 10}), (2, {1: 99, 2: 99})):
                for key, value in released.items():
                    await run.metrics.release({"a": value}, key)
                await run.states.save(0, number)
            return run.metrics.rows()

    assert [row["a"] for row in asyncio.run(program(back=False))] == [99, 99]
    assert asyncio.run(program(back=True)) == [{"round": 1, "a": 10}, {"round": 2, "a": 20}]


def test_metrics_that_were_written_before_the_first_state_stay(tmp_path: Path) -> None:
    async def program(number: int) -> None:
        with Run(tmp_path) as run:
            await run.states.load_latest(0)
            await run.metrics.release({"a": number}, number)
            run.metrics.flush()
            await run.states.save(number, number)

    for number in (1, 2):
        asyncio.run(program(number))
    assert (tmp_path / "metrics.csv").read_text() == "round,a\n1,1\n2,2\n"


def test_rows_come_back_with_their_keys_and_before_a_round(tmp_path: Path) -> None:
    manager = CSVFileReleaseManager(tmp_path / "m.csv", key_fieldname="round")
    for number in (1, 2, 3):
        asyncio.run(manager.release({"loss": np.float32(number / 4), "hits": np.array([number])}, number))
    asyncio.run(manager.release({"loss": float("nan")}, None))
    for one in (manager, CSVFileReleaseManager(tmp_path / "m.csv", key_fieldname="round")):
        assert one.rows(before=3) == [
            {"round": 1, "loss": 0.25, "hits": [1]},
            {"round": 2, "loss": 0.5, "hits": [2]},
        ]
        assert [row["round"] for row in one.rows()] == [1, 2, 3, None]
    assert CSVFileReleaseManager(tmp_path / "none.csv").rows() == []
