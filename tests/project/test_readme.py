"""The README: its Python is run, in order, and prints what it says."""

import contextlib
import doctest
import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import federated_language as fl
import numpy as np
import pytest
from google.protobuf.message import DecodeError

import fedstack

VALUES = fl.FederatedType(np.int32, fl.CLIENTS)
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python\n(?P<source>.*?)^```\n(?:```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A piece of Python and what it prints, where `...` stands for anything."""

    source: str
    output: str


BLOCKS = [Block(found["source"], found["output"] or "") for found in _BLOCK.finditer(README)]


def outputs_of(blocks: list[Block], folder: Path) -> list[str]:
    """Runs blocks in one namespace and returns what each prints."""
    namespace: dict[str, object] = {}
    outputs: list[str] = []

    def run() -> None:
        for number, block in enumerate(blocks):
            file = folder / f"block_{number}.py"  # a file, so that tracebacks find the lines
            file.write_text(block.source, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block.source, str(file), "exec"), namespace)
            # What older Pythons do not have, and every other one draws differently: the marks below a line of code.
            outputs.append(re.sub(r"^ *[~^]+\n", "", printed.getvalue(), flags=re.MULTILINE))

    # The language keeps its contexts per thread: one of its own leaves no context behind.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outputs


def test_every_python_block_prints_what_the_readme_says(tmp_path: Path) -> None:
    outputs = outputs_of(BLOCKS, tmp_path)
    check = doctest.OutputChecker().check_output
    wrong = [
        (block, output)
        for block, output in zip(BLOCKS, outputs)
        if not check(block.output, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    ]
    assert len(outputs) == len(BLOCKS)
    assert wrong == []


def test_the_first_computation_has_at_most_fifteen_lines() -> None:
    assert len([line for line in BLOCKS[0].source.splitlines() if line.strip()]) <= 15


def test_the_test_in_the_readme_passes(tmp_path: Path) -> None:
    tests = [block for block in BLOCKS if block.source.startswith("def test_")]
    assert len(tests) == 1
    (tmp_path / "test_own.py").write_text(BLOCKS[0].source + tests[0].source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout


def nested(depth: int) -> fl.framework.Computation:
    """Computations that call each other."""
    inner = nested(depth - 1) if depth > 1 else lambda values: values
    return fl.federated_computation(lambda values: inner(values), VALUES)


def test_computations_may_call_each_other_as_deeply_as_the_readme_says() -> None:
    assert "about 13 federated computations" in README
    nested(13)
    with pytest.raises(DecodeError, match="Error parsing message"):
        nested(20)


def test_plain_functions_may_call_each_other_at_any_depth() -> None:
    def wrap(function: Callable[[fl.Value], fl.Value]) -> Callable[[fl.Value], fl.Value]:
        return lambda values: function(values)

    function = fl.federated_sum
    for _ in range(50):
        function = wrap(function)
    computation = fl.federated_computation(lambda values: function(values), VALUES)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert computation([1, 2]) == 3


def test_the_examples_are_named() -> None:
    examples = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in examples if f"(examples/{name})" not in README] == []


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)", README))
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).is_file()
