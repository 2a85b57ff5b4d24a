"""The notebooks of the examples: they run from top to bottom, and are stored without what that prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))}
WALL = 60

# Runs code cells as a kernel does, with `await` at their top level.
DRIVER = """
import ast, asyncio, inspect, json, pathlib, sys

async def run(cells):
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        code = compile("".join(cell["source"]), f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found = eval(code, names)
        if inspect.iscoroutine(found):
            await found

cells = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]
asyncio.run(run([cell for cell in cells if cell["cell_type"] == "code"]))
"""


def run_all(name: str, folder: Path) -> list[str]:
    """Runs a notebook in a folder, in a process of its own, and returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, NOTEBOOKS[name]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WALL,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_first_notebook_trains_draws_survives_a_client_and_goes_on(tmp_path: Path) -> None:
    first, trained, failed, _, survived, begun, resumed, ended = run_all("first_rounds", tmp_path)
    assert float(trained.split()[1]) > max(0.9, float(first.split()[1]))
    assert "client 7" in failed
    assert survived.startswith("accuracy 0.")
    assert survived.endswith("without clients [7]")
    assert (begun, resumed) == ("begins with round 1", "begins with round 6")
    assert ended == trained  # a run that was stopped trains the same model
    assert (tmp_path / "first-rounds" / "accuracy.svg").stat().st_size > 2_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
