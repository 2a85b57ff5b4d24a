"""The recipes: each script runs, draws its picture and says what it has found."""

import argparse
import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pages import blocks_of

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

# A process each. The limits are for machines that are busy with more than tests.
pytestmark = [pytest.mark.long, pytest.mark.timeout(320)]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {path.stem: path for path in sorted((ROOT / "examples" / "recipes").glob("*.py"))}
# They run as recipes do. One is no recipe: it compares what some of them do.
SCRIPTS = {**RECIPES, "curves": ROOT / "examples" / "curves.py"}
MOST_LINES = 69
MOST_BYTES = 60_000  # of a picture in docs
ROUNDS = 2
# Runs each script in a fork that has what most of them import, as that takes longer than they do. JAX and gRPC, which
# have threads, are imported by the scripts themselves.
DRIVER = """
import json, os, runpy, sys
import fedstack.data.partition, fedstack.program, matplotlib.backends.backend_svg, matplotlib.figure
import scipy.optimize, scipy.special, scipy.stats, sklearn.datasets, sklearn.linear_model

for line in sys.stdin:
    folder, *sys.argv = json.loads(line)
    if not (child := os.fork()):
        os.chdir(folder)
        for number, path in enumerate([os.devnull, "../stdout", "../stderr"]):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# What makes them quicker and leaves every line of them in use.
OPTIONS = {"gpu_per_worker": ["--gpus", "1"], "hyperparameter_sweep": ["--points", "2"]}
OWN = RECIPES["fedavg_own_files"].read_text(encoding="utf-8")
# The lines of it that read files, as its page says.
READING = OWN[OWN.index("files = ") : OWN.index("training = ")]
# How files of pictures begin.
MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml"}


def packages_of(script: Path) -> set[str]:
    """Returns the packages that a script imports, wherever it does, but for those that it can do without."""
    found: set[str] = set()
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    tried = {one for node in nodes if isinstance(node, ast.Try) for one in node.body}
    for node in set(nodes) - tried:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return {name.partition(".")[0] for name in found}


# Takes the minutes that compiling a transformer three times takes on a busy machine; `make leaves` runs it.
COSTLY = {"lora"}
# As in the pages, what needs a package that is not in this environment is compiled only.
HERE = [
    pytest.param(name, marks=pytest.mark.soak if name in COSTLY else ())
    for name, path in SCRIPTS.items()
    if all(map(importlib.util.find_spec, packages_of(path)))
]


def pictures_in(folder: Path, name: str) -> list[Path]:
    """Returns the pictures of a recipe in a folder."""
    found = [path for suffix in MAGIC if (path := folder / f"{name}{suffix}").is_file()]
    assert all(path.read_bytes().startswith(MAGIC[path.suffix]) for path in found)
    return found


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., int]]:
    """Runs a script with its options in a folder, writes its output beside that, and returns the exit code."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    with driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        requests, answers = driver.stdin, driver.stdout

        def run(folder: Path, script: Path, *options: str) -> int:
            print(json.dumps([str(folder), str(script), *options]), file=requests, flush=True)
            return int(answers.readline())

        yield run


@pytest.mark.parametrize("name", HERE)
def test_a_recipe_draws_its_picture_and_says_what_it_has_found(
    run: Callable[..., int], name: str, tmp_path: Path
) -> None:
    (folder := tmp_path / "here").mkdir()
    code = run(folder, SCRIPTS[name], "--rounds", str(ROUNDS), "--out", "made", *OPTIONS.get(name, ()))
    errors = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert code == 0, errors
    assert "Traceback" not in errors
    *_, found, where = (tmp_path / "stdout").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"[A-Za-z].* \d.*[^.]", found)
    [picture] = pictures_in(folder / "made", name)
    assert where == f"picture: made/{picture.name}"
    assert picture.stat().st_size > 2_000
    assert [path.name for path in folder.iterdir()] == ["made"]  # nothing is left elsewhere


def test_a_recipe_refuses_to_have_no_rounds(run: Callable[..., int], tmp_path: Path) -> None:
    (folder := tmp_path / "here").mkdir()
    assert run(folder, RECIPES["fedavg_own_files"], "--rounds", "0") == 2
    assert "error: expected at least one round" in (tmp_path / "stderr").read_text(encoding="utf-8")


def error_of_reading(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what the recipe for files says of a folder that it cannot use."""
    names = {"np": np, "parser": argparse.ArgumentParser(), "options": argparse.Namespace(data=folder)}
    with pytest.raises(SystemExit):
        exec(READING, names)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["age,sick\n", "age,sick\n50,1\n", "sick,age\n50,1\n", "age\n1\n", "age,sick\n50\n", "age,sick\n50,1,1\n"]
    + [f"age,sick\n40,0\n{row}\n" for row in ("?,1", "nan,1", ",1", "50,yes", "50,-1", "50,0.5", "50,inf")],
)
def test_an_own_file_that_cannot_be_used_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.csv").write_text("age,sick\n50,1\n40,0\n", encoding="utf-8")
    (tmp_path / "wrong.csv").write_text(text, encoding="utf-8")
    assert f"error: {tmp_path / 'wrong.csv'}: " in error_of_reading(tmp_path, capsys)


def test_a_folder_without_files_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"error: found no *.csv in {tmp_path / 'nowhere'}\n" in error_of_reading(tmp_path / "nowhere", capsys)


def test_own_files_and_failing_clients_join_a_run_that_goes_on_as_its_page_says(
    run: Callable[..., int], tmp_path: Path
) -> None:
    script = RECIPES["checkpointed_fedavg"].read_text(encoding="utf-8")
    page = (ROOT / "docs" / "gallery" / "checkpointed_fedavg.md").read_text(encoding="utf-8")
    [table] = blocks_of(page)
    script = script[: script.index("x, y = ")] + READING + table.source + script[script.index("MODEL, ROWS = ") :]
    [option] = re.findall(r'parser\.add_argument\("--data".*\n', OWN)
    [policy] = re.findall(r"client_failures=[\w.]+\(.*?\)", page)
    script = script.replace("(options := parser", f"{option}(options := parser")
    script = script.replace("local_execution_context()", f"local_execution_context({policy})")
    (joined := tmp_path / "joined.py").write_text(script, encoding="utf-8")
    (files := tmp_path / "files").mkdir()
    for number in range(12):
        rows = "".join(f"{age},{age > 50:d}\n" for age in range(20 + number, 80, 10))
        (files / f"{number}.csv").write_text(f"age,sick\n{rows}", encoding="utf-8")
    for rounds in ("1", "2"):
        assert run(files, joined, "--data", str(files), "--rounds", rounds, "--out", "made") == 0
    said = (tmp_path / "stdout").read_text(encoding="utf-8")
    assert said.startswith("{'round': 2, ")


def test_ctrl_c_ends_a_run_without_a_traceback_and_says_how_it_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, RECIPES["checkpointed_fedavg"], "--rounds", "100000", "--out", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert "'round': 1," in run.stdout.readline()
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (run.returncode, said) == (130, "stopped by Ctrl-C; start the script again, and it goes on\n")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_compiles(name: str) -> None:
    source = RECIPES[name].read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MOST_LINES
    assert compile(source, name, "exec")
    assert '.rounds > 0 or parser.error("expected at least one round")' in source
    # Python looks for modules in the folder of the script first. JAX looks for `compression`, which Python 3.14 has.
    assert name not in {*sys.stdlib_module_names, "compression"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_small_picture_in_the_gallery(name: str) -> None:
    [picture] = pictures_in(ROOT / "docs" / "gallery", name)
    assert picture.stat().st_size <= MOST_BYTES
