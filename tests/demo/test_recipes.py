"""The recipes: each script runs, draws its picture and says what it has found."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

pytestmark = pytest.mark.long  # a process each, which imports much

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {path.stem: path for path in sorted((ROOT / "examples" / "recipes").glob("*.py"))}
MOST_LINES = 69
LONGER = {"curves": 80, "lora": 80}  # one compares recipes, one makes the transformer that others would download
MOST_BYTES = 60_000  # of a picture in docs
ROUNDS, WALL = 2, 60
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
    for name, path in RECIPES.items()
    if all(map(importlib.util.find_spec, packages_of(path)))
]


def pictures_in(folder: Path, name: str) -> list[Path]:
    """Returns the pictures of a recipe in a folder."""
    found = [path for suffix in MAGIC if (path := folder / f"{name}{suffix}").is_file()]
    assert all(path.read_bytes().startswith(MAGIC[path.suffix]) for path in found)
    return found


@pytest.mark.parametrize("name", HERE)
def test_a_recipe_draws_its_picture_and_says_what_it_has_found(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, RECIPES[name], "--rounds", str(ROUNDS), "--out", tmp_path / "made"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WALL,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert re.fullmatch(r"[A-Za-z].* \d.*[^.]", done.stdout.splitlines()[-1])
    [picture] = pictures_in(tmp_path / "made", name)
    assert picture.stat().st_size > 2_000
    assert [path.name for path in tmp_path.iterdir()] == ["made"]  # nothing is left elsewhere


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_compiles(name: str) -> None:
    source = RECIPES[name].read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LONGER.get(name, MOST_LINES)
    assert compile(source, name, "exec")
    # Python looks for modules in the folder of the script first. JAX looks for `compression`, which Python 3.14 has.
    assert name not in {*sys.stdlib_module_names, "compression"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_small_picture_in_the_gallery(name: str) -> None:
    [picture] = pictures_in(ROOT / "docs" / "gallery", name)
    assert picture.stat().st_size <= MOST_BYTES
