"""`fedstack runs`: the runs of a folder, what differs between two, and one that is started again."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fedstack.__main__ import main
from fedstack.program import Run


def make_run(folder: Path, rounds: int = 4, *, seed: int = 0, change=lambda number, state: state, **parameters) -> None:
    async def program() -> None:
        with Run(folder, seed=seed, keep_total=3, parameters=parameters, name="train.py") as run:
            for number in range(1, rounds + 1):
                weights = {"w": np.arange(3, dtype=np.float32) * number, "b": np.array(number, ml_dtypes.bfloat16)}
                state = change(number, {"model": weights, "loss": 1 / number, "text": "x", "none": np.nan})
                await run.metrics.release({"loss": state["loss"], "hits": np.array([1, number])}, number)
                await run.states.save(state, number)

    asyncio.run(program())


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["runs", *map(str, arguments)])
    return (code, *capsys.readouterr())


def test_runs_are_listed_with_how_far_each_is(tmp_path: Path, capsys) -> None:
    make_run(tmp_path / "sweep" / "b", 6, seed=2, rate=0.5)
    make_run(tmp_path / "a", 0)
    code, out, err = called(capsys, tmp_path)
    assert (code, err) == (0, "")
    header, first, second = (re.split(r"  +", line.strip()) for line in out.splitlines())
    assert header == ["run", "program", "seed", "rounds", "versions", "size", "clients' states", "last metrics", "open"]
    assert first[:5] == ["a", "train.py", "0", "0", "none"]
    assert first[6:] == ["none", "none", "no"]
    assert second[:5] == ["sweep/b", "train.py", "2", "6", "1, 5, 6"]
    assert second[6:] == ["none", "hits=[1, 6] loss=0.166667", "no"]
    code, out, _ = called(capsys, tmp_path, "--json")
    found = json.loads(out)["runs"][1]
    assert (found["run"], found["rounds"], found["versions"], found["parameters"]) == (
        "sweep/b",
        6,
        [1, 5, 6],
        {"rate": 0.5},
    )
    files = [path for path in (tmp_path / "sweep" / "b").rglob("*") if path.is_file()]
    assert found["bytes"] == sum(path.stat().st_size for path in files)
    assert called(capsys, tmp_path / "a")[1].splitlines()[1].startswith(".  ")


def test_metrics_of_rounds_that_are_not_complete_are_not_the_last(tmp_path: Path, capsys) -> None:
    make_run(tmp_path / "a", 5)
    (tmp_path / "a" / "states" / "program_state_5").unlink()
    assert re.split(r"  +", called(capsys, tmp_path)[1].splitlines()[1])[3:8:4] == ["4", "hits=[1, 4] loss=0.25"]


def test_states_of_clients_are_listed_with_their_sizes(tmp_path: Path, capsys) -> None:
    async def program() -> None:
        with Run(tmp_path / "a", name="train.py") as run:
            for name in ("memories", "heads"):
                run.client_states(name, like=np.zeros(3, np.float32)).update(
                    ["ann", "bob"], [np.ones(3, np.float32), np.ones(3, np.float32)]
                )

    asyncio.run(program())
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / "a" / name).iterdir()) for name in ("heads", "memories")}
    assert json.loads(called(capsys, tmp_path, "--json")[1])["runs"][0]["client_states"] == sizes
    assert re.search(r"  heads [\d.]+ \w+, memories [\d.]+ \w+ +none +no$", called(capsys, tmp_path)[1], re.MULTILINE)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "the same 2 rounds; states compared: 1, 2"),
        (
            {"bob": [1, 1, 2]},
            "memories['bob']/own: an array float32[3], largest absolute difference 1; memories: 1 client of 2",
        ),
        ({"cem": [0, 0, 0]}, "memories: 1 client only in the second, such as 'cem'; memories: 1 client of 3 differ"),
    ],
)
def test_states_of_clients_are_compared(tmp_path: Path, capsys, changed: dict[str, list[int]], text: str) -> None:
    async def program(name: str, last: dict[str, list[int]]) -> None:
        with Run(tmp_path / name, name="train.py") as run:
            states = run.client_states("memories", like={"own": np.zeros(3, np.float32), "rounds": np.int32(0)})
            await run.states.load_latest(0)
            for number, some in ((1, {"ann": [1, 2, 3], "bob": [1, 1, 1]}), (2, last)):
                new = [{"own": np.array(own, np.float32), "rounds": np.int32(1)} for own in some.values()]
                states.update(list(some), new)
                await run.states.save(number, number)

    asyncio.run(program("a", {}))
    asyncio.run(program("b", changed))
    code, out, _ = called(capsys, tmp_path, "--compare", "a", "b")
    assert code == bool(changed)
    assert text in out
    assert not changed or "version 2 is the first kept by both with another state: " in out


def test_an_open_run_is_listed_with_its_process_and_is_not_disturbed(tmp_path: Path, capsys) -> None:
    with Run(tmp_path / "a", name="first") as run:
        code, out, _ = called(capsys, tmp_path)
        assert code == 0
        assert re.search(rf"since [-\d]+ [:\d]+, by process {os.getpid()} on \S+$", out.splitlines()[1])
        assert json.loads(called(capsys, tmp_path, "--json")[1])["runs"][0]["open"]["name"] == "first"
        asyncio.run(run.states.save(1, 1))
        code, _, err = called(capsys, tmp_path, "--resume", "a")
        assert code == 1
        assert "Expected a run that has ended, found that the run 'first' of this process has " in err
    assert called(capsys, tmp_path)[1].splitlines()[1].endswith("  no")


def test_a_damaged_newest_state_is_said_and_its_run_is_listed(tmp_path: Path, capsys) -> None:
    make_run(tmp_path / "a", 2)
    path = tmp_path / "a" / "states" / "program_state_2"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, out, err = called(capsys, tmp_path)
    assert (code, out.splitlines()[1].split()[0]) == (1, "a")
    assert re.search(r"program_state_2 as it was written, found that its \w+ is damaged or missing", err)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: flip(run / "states" / "program_state_2", -64), r"program_state_2 .* its value is damaged"),
        (lambda run: max((run / "heads").glob("*.states")).unlink(), r"found no file .*heads.*\.states"),
        (lambda run: os.truncate(max((run / "heads").glob("*.states")), 90), r"heads.* its beginning is damaged"),
        (lambda run: flip(max((run / "heads").glob("*.states")), -1), r"heads.* state of .* 'bob' is damaged"),
        (
            lambda run: os.replace(*(run / "heads" / f"0000000{one}.states" for one in (1, 0))),
            r"heads.*, found others, as after a copy",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_newest_version_is_said(tmp_path: Path, capsys, damage, message: str) -> None:
    async def program() -> None:
        with Run(tmp_path / "a", name="train.py") as run:
            states = run.client_states("heads", like=np.zeros(3, np.float32))
            await run.states.load_latest(0)
            for number, client in ((1, "ann"), (2, "bob")):
                states.update([client], [np.full(3, number, np.float32)])
                await run.states.save(np.full(16, number, np.float32), number)

    asyncio.run(program())
    assert called(capsys, tmp_path)[::2] == (0, "")
    damage(tmp_path / "a")
    code, out, err = called(capsys, tmp_path)
    assert code == 1
    assert out.splitlines()[1].split()[:4] == ["a", "train.py", "0", "2"]
    assert re.search(message, err), err


def test_what_is_wrong_with_a_run_is_said_and_the_others_are_listed(tmp_path: Path, capsys) -> None:
    for name in "abcd":
        make_run(tmp_path / name, 2)
    (tmp_path / "e").mkdir()
    os.mkfifo(tmp_path / "e" / "run.json")
    (tmp_path / "a" / "run.json").write_text("{")
    (tmp_path / "b" / "run.json").write_text('{"of": "another tool"}')
    (tmp_path / "c" / "metrics.csv").write_bytes(b"\xff\xfe")
    code, out, err = called(capsys, tmp_path)
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["run", "d"]
    assert re.findall(r"error: Expected (.*?) in ", err) == ["the record of a run"] * 2 + [
        "rows with the column 'round'",
        "the record of a run",
    ]
    code, out, _ = called(capsys, tmp_path, "--json")
    found = json.loads(out)
    assert (code, found["ok"], sorted(found["errors"]), len(found["runs"])) == (1, False, ["a", "b", "c", "e"], 1)
    code, _, err = called(capsys, tmp_path, "--resume", "a")
    assert code == 1
    assert "found a damaged file" in err


def test_a_folder_without_runs_and_names_of_no_run_are_refused(tmp_path: Path, capsys) -> None:
    assert called(capsys, tmp_path)[2].startswith(
        f"fedstack runs: error: Expected folders with a run.json below {tmp_path}, "
    )
    assert "found no folder at" in called(capsys, tmp_path / "none")[2]
    make_run(tmp_path / "a", 1)
    code, _, err = called(capsys, tmp_path, "--compare", "a", "b")
    assert (code, err) == (
        1, f"fedstack runs: error: Expected the name of a run below {tmp_path}, found 'b'; there are: a\n"
    )  # fmt: skip
    assert called(capsys, tmp_path, "--resume", "a", "--json")[0] == 2


def test_runs_that_are_the_same_are_so_in_all_rounds_that_both_have(tmp_path: Path, capsys) -> None:
    make_run(tmp_path / "a", 4)
    make_run(tmp_path / "b", 4)
    make_run(tmp_path / "c", 6)
    assert called(capsys, tmp_path, "--compare", "a", "b")[:2] == (0, "the same 4 rounds; states compared: 1, 3, 4\n")
    code, out, _ = called(capsys, tmp_path, "--compare", "a", "c")
    assert (code, out) == (0, "the same 4 rounds; states compared: 1\na has 4 rounds, c has 6\n")


def test_the_first_round_that_differs_is_shown_with_what_differs(tmp_path: Path, capsys) -> None:
    def other(number, state):
        if number >= 3:
            state["model"]["w"] = state["model"]["w"] + np.float32([0, 0.25, 0])
            state["loss"] += 0.5
        if number == 4:
            state["text"] = "y"
        return state

    make_run(tmp_path / "a", 4, seed=1, rate=0.5)
    make_run(tmp_path / "b", 4, seed=2, rate=0.1, change=other)
    code, out, _ = called(capsys, tmp_path, "--compare", "a", "b")
    assert code == 1
    settings, metrics, state = out.splitlines()
    assert settings == "settings of a / b: the seed = 1 / 2, rate = 0.5 / 0.1"
    assert metrics == (
        "round 3 is the first with other metrics: loss: 0.3333333333333333 / 0.8333333333333333, largest absolute "
        "difference 0.5"
    )
    assert state == (
        "version 3 is the first kept by both with another state: loss: 0.3333333333333333 / 0.8333333333333333, "
        "largest absolute difference 0.5; model/w: an array float32[3], largest absolute difference 0.25"
    )
    found = json.loads(called(capsys, tmp_path, "--compare", "a", "b", "--json")[1])
    assert (found["same"], found["metrics_round"], found["state_version"]) == (False, 3, 3)
    assert found["state"][1] == {"name": "model/w", "text": "an array float32[3]", "largest": 0.25}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda state: {**state, "text": "y"}, "text: 'x' / 'y'"),
        (lambda state: {**state, "new": 1}, "new: only in the second"),
        (lambda state: {**state, "none": 1.0}, "none: nan / 1.0, largest absolute difference nan"),
        (lambda state: {**state, "none": None}, "none: nan / None"),
        (lambda state: {**state, "model": {**state["model"], "w": np.zeros(2)}}, "model/w: an array float32[3]"),
        (lambda state: {**state, "model": {**state["model"], "b": np.array(9, ml_dtypes.bfloat16)}}, "difference 8"),
    ],
)
def test_any_value_of_a_state_may_differ(tmp_path: Path, capsys, change, shown: str) -> None:
    make_run(tmp_path / "a", 1)
    make_run(tmp_path / "b", 1, change=lambda number, state: change(state))
    code, out, _ = called(capsys, tmp_path, "--compare", "a", "b")
    assert code == 1
    assert out.startswith("version 1 is the first kept by both with another state: ")
    assert shown in out


PROGRAM = """
import asyncio, os, signal, sys
from fedstack.program import Run

async def train():
    with Run(sys.argv[1], seed=5) as run:
        _, last = await run.states.load_latest(0)
        print("goes on with", last + 1, "as", sys.argv[2], flush=True)
        await run.states.save(last + 1, last + 1)
        if last == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)

asyncio.run(train())
"""


def test_a_run_is_started_again_as_it_was_and_its_status_is_returned(tmp_path: Path, capsys) -> None:
    work = tmp_path / "my work"
    work.mkdir()
    (work / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py", "runs/a", "$(id) 'x'"]
    assert subprocess.run(command, cwd=work, timeout=60).returncode == -signal.SIGKILL
    again = [sys.executable, "-m", "fedstack", "runs", str(work / "runs"), "--resume", "a"]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "goes on with 2 as $(id) 'x'\n")
    shown = done.stderr.splitlines()[0]
    assert shlex.split(shown) == ["cd", str(work), "&&", *command]
    path = work / "runs" / "a" / "run.json"
    path.write_text(path.read_text().replace(json.dumps(str(work)), json.dumps(str(tmp_path / "gone"))))
    code, _, err = called(capsys, work / "runs", "--resume", "a")
    assert code == 1
    assert f"error: Cannot start {sys.executable} in {tmp_path / 'gone'} for a: " in err


@pytest.mark.parametrize("copied", [shutil.copytree, os.rename])
def test_a_copy_of_a_run_does_not_start_the_run_that_it_was_copied_from(tmp_path: Path, capsys, copied) -> None:
    make_run(tmp_path / "a", 1)
    copied(tmp_path / "a", tmp_path / "b")
    code, _, err = called(capsys, tmp_path, "--resume", "b")
    assert code == 1
    assert f"Expected the run in {tmp_path / 'a'}, with which its command goes on, found it in {tmp_path / 'b'}" in err
    assert "start the program by hand" in err
    Run(tmp_path / "b", name="train.py").close()
    assert json.loads((tmp_path / "b" / "run.json").read_text())["run_folder"] == str(tmp_path / "b")


def test_a_run_of_a_shell_has_no_command_to_start_again(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    make_run(tmp_path / "a", 1)
    code, _, err = called(capsys, tmp_path, "--resume", "a")
    assert code == 1
    assert "Expected a command in " in err


INTERRUPTED = """
import sys, time
from fedstack.program import Run
with Run(sys.argv[1]):
    try:
        print("runs", flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        print("ends well", flush=True)
        sys.exit(3)
"""


def test_ctrl_c_is_the_programs_to_handle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INTERRUPTED)
    subprocess.run([sys.executable, "train.py", "runs/a"], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=60)
    again = [sys.executable, "-m", "fedstack", "runs", str(tmp_path / "runs"), "--resume", "a"]
    with subprocess.Popen(
        again, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "ends well\n"
        assert process.wait(30) == 3
