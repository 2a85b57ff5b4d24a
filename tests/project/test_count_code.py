"""`make count` counts what is code, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "count_code.py"
_spec = importlib.util.spec_from_file_location("count_code", _SCRIPT)
assert _spec is not None
assert _spec.loader is not None
count_code = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(count_code)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""A docstring\n\nof several lines."""\n', 0),
        ("import os\nfrom os import (\n    path,\n)\n", 0),
        ("# A comment.\n\nX = 1  # why\n", 1),
        ('X = 1\n"""What it is."""\n', 1),
        ('def f():\n    """Does it."""\n    import os\n    return (\n        os\n    )\n', 4),
        ('X = """a\n\n# b\n"""\n', 4),
    ],
)
def test_lines_count_that_are_neither_blank_comment_docstring_nor_import(source: str, lines: int):
    assert count_code.code_lines(source) == lines


def test_tools_for_tests_are_counted_apart(capsys: pytest.CaptureFixture[str]):
    count_code.main()
    *folders, total, apart = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    counts = {name: int(code.replace(",", "")) for name, _, code in folders}
    assert total[0] == "all but testing"
    assert int(total[2].replace(",", "")) == sum(counts.values())
    assert apart[0] == "testing"
    assert not {"testing", "proto"} & counts.keys()
