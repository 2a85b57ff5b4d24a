"""Lines of code in tracebacks of other processes."""

import linecache
import sys
from types import ModuleType

import pytest

from fedstack.foundations.traceback_filter import with_source_lines

CELL = "<ipython-input-7>"


@pytest.fixture(autouse=True)
def cell(monkeypatch):
    monkeypatch.setitem(linecache.cache, CELL, (30, None, ["def f(x):\n", "    return 1 / x\n"], CELL))


def test_lines_of_cells_are_added():
    text = f'ZeroDivisionError; at client 1\n  File "{CELL}", line 1, in f\n  File "{CELL}", line 2, in g'
    assert with_source_lines(text) == (
        f'ZeroDivisionError; at client 1\n  File "{CELL}", line 1, in f\n    def f(x):\n'
        f'  File "{CELL}", line 2, in g\n    return 1 / x'
    )


def test_lines_of_the_program_are_added(tmp_path, monkeypatch):
    program, module = tmp_path / "train.py", ModuleType("__main__")
    program.write_text("x = [][1]\n")
    module.__file__ = str(program)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert with_source_lines(f'  File "{program}", line 1, in f').endswith("\n    x = [][1]")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no traceback",
        f'  File "{CELL}", line 2, in f\n    what the peer has',
        f'  File "{CELL}", line 0, in f',
        f'  File "{CELL}", line 3, in f',
        f'  File "{CELL}", line 2',
        '  File "<ipython-input-8>", line 1, in f',
    ],
)
def test_what_is_there_or_is_not_known_stays_as_it_is(text):
    assert with_source_lines(text) == text


@pytest.mark.parametrize("is_known", [False, True])
def test_other_files_are_not_read(tmp_path, is_known):
    secret = tmp_path / "secret"
    secret.write_text("hidden\n")
    if is_known:
        linecache.getlines(str(secret))
    text = f'  File "{secret}", line 1, in f'
    assert with_source_lines(text) == text
