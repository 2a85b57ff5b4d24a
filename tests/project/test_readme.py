"""The README and the pages for users: their Python is run, in order, and prints what they say."""

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import federated_language as fl
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from pages import Block, blocks_of

import fedstack
from fedstack.__main__ import COMMANDS

VALUES = fl.FederatedType(np.int32, fl.CLIENTS)
ROOT = Path(__file__).resolve().parents[2]
# A page runs in a process of its own, with whatever it imports; on a busy machine that takes its time.
_PAGE_SECONDS = 300
pytestmark = pytest.mark.timeout(2 * _PAGE_SECONDS)

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/coming-from.md",
    "docs/datasets.md",
    "docs/contexts.md",
    "docs/failures.md",
    "docs/recipes.md",
    "docs/troubleshooting.md",
    "docs/testing.md",
    "docs/workers.md",
    "docs/engines.md",
    "docs/cluster.md",
    "docs/watching.md",
    "docs/coordinator.md",
    "docs/data-service.md",
    "docs/programs.md",
    "docs/rpc.md",
    "docs/extending.md",
    "docs/scaling.md",
)
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
# Deployment needs several machines, and the pages of recipes lead to scripts, which tests/demo runs.
WITHOUT_CODE = [ROOT / "docs" / name for name in ("deployment.md", "gallery.md")]
WITHOUT_CODE += sorted((ROOT / "docs" / "gallery").glob("*.md"))
ALL_TEXT = "".join([*TEXTS.values(), *(page.read_text(encoding="utf-8") for page in WITHOUT_CODE)])
MOST_LINES = 150
# With all that it needs PyTorch takes gigabytes, and DrJAX is shown only for comparison, so they are no part of the
# development environment: where they are not installed, what needs them is compiled only.
NOT_HERE = [name for name in ("torch", "drjax") if importlib.util.find_spec(name) is None]
# What needs Ray is run with a cluster, in tests/engines.
ALL_BLOCKS = {page: blocks_of(text) for page, text in TEXTS.items()}
BLOCKS = {
    page: [block for block in blocks if not any(map(block.imports, [*NOT_HERE, "ray"]))]
    for page, blocks in ALL_BLOCKS.items()
}


# What runs the blocks, as a script would, and says where each ends.
DRIVER = """
import sys

for path in sys.argv[1:] if __name__ == "__main__" else ():  # processes of a pool may begin with this file, too
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"))
    print("=== the end of a block", flush=True)
"""


def outputs_of(blocks: list[Block], folder: Path, workers: list[str]) -> list[str]:
    """Runs blocks one after the other, in a process of their own, and returns what each prints.

    Args:
      blocks: The blocks.
      folder: Where they are written, so that tracebacks find the lines.
      workers: The addresses to put in place of those of the page.
    """
    files: list[str] = []
    for number, block in enumerate(blocks):
        source = block.source
        for port, worker in enumerate(workers, start=8000):
            source = source.replace(f"localhost:{port}", worker)
        (folder / f"block_{number}.py").write_text(source, encoding="utf-8")
        files.append(f"block_{number}.py")
    (folder / "driver.py").write_text(DRIVER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "driver.py", *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_PAGE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What older Pythons do not have, and every other one draws differently: the marks below a line of code.
    printed = re.sub(r"^ *[~^]+\n", "", done.stdout, flags=re.MULTILINE)
    return printed.split("=== the end of a block\n")[:-1]


@contextlib.contextmanager
def served(*options: str) -> Iterator[str]:
    """Runs `fedstack serve` for the block; yields its address."""
    command = [sys.executable, "-m", "fedstack", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" serving on ")[1].split(" (")[0]
        finally:
            process.kill()


@pytest.mark.parametrize("page", ["README.md", *(pytest.param(page, marks=pytest.mark.long) for page in PAGES[1:])])
def test_every_python_block_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    options = ["--allow-python-code"]
    with contextlib.ExitStack() as stack:
        workers: list[str] = []
        if any("localhost:800" in block.source for block in BLOCKS[page]):
            assert TEXTS[page].count(f"fedstack serve --port 8000 {' '.join(options)}\n") == 1
            workers = [stack.enter_context(served(*options)) for _ in range(2)]
        outputs = outputs_of(BLOCKS[page], tmp_path, workers)
    wrong = [(block, output) for block, output in zip(BLOCKS[page], outputs) if not block.prints(output)]
    assert len(outputs) == len(BLOCKS[page]) > 0
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_compiles(page: str) -> None:
    assert all(compile(block.source, page, "exec") for block in ALL_BLOCKS[page])


def test_the_readme_can_be_read_at_once() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= MOST_LINES


def test_federated_averaging_takes_at_most_thirty_lines() -> None:
    assert len([line for line in BLOCKS["README.md"][0].source.splitlines() if line.strip()]) <= 30


@pytest.mark.long
def test_the_test_in_the_pages_passes(tmp_path: Path) -> None:
    page = "docs/testing.md"
    tests = [block for block in BLOCKS[page] if block.source.startswith("def test_")]
    assert len(tests) == 1
    (tmp_path / "test_own.py").write_text(BLOCKS[page][0].source + tests[0].source, encoding="utf-8")
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


def test_computations_may_call_each_other_as_deeply_as_the_pages_say() -> None:
    assert "about 13 federated computations" in ALL_TEXT
    nested(13)
    with pytest.raises(DecodeError, match="Error parsing message"):
        nested(20)


def test_structs_may_be_inside_each_other_as_deeply_as_the_pages_say() -> None:
    def of_structs(levels: int) -> fl.framework.Computation:
        member: object = np.int32
        for _ in range(levels):
            member = OrderedDict(inside=member)
        return fl.federated_computation(fl.federated_sum, fl.FederatedType(fl.to_type(member), fl.CLIENTS))

    assert "about 28 structs inside each other" in ALL_TEXT
    of_structs(28)
    with pytest.raises(DecodeError, match="Error parsing message"):
        of_structs(40)


def test_plain_functions_may_call_each_other_at_any_depth() -> None:
    def wrap(function: Callable[[fl.Value], fl.Value]) -> Callable[[fl.Value], fl.Value]:
        return lambda values: function(values)

    function = fl.federated_sum
    for _ in range(50):
        function = wrap(function)
    computation = fl.federated_computation(lambda values: function(values), VALUES)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert computation([1, 2]) == 3


def commands() -> list[list[str]]:
    """Lists the `fedstack` commands in blocks of the pages, without what is before them."""
    blocks = [
        text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```\n", ALL_TEXT, re.MULTILINE | re.DOTALL) if not kind
    ]
    found = re.findall(r"^(?:\w+=\w+ )*fedstack (.*)$", "".join(blocks).replace("\\\n", ""), re.MULTILINE)
    return [shlex.split(line) for line in found]


def subcommand(name: str) -> click.Command:
    [command] = [command for command in COMMANDS if name == command.name]
    return command


def test_the_pages_show_commands() -> None:
    assert {arguments[0] for arguments in commands()} >= {"serve", "check", "certs"}


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_a_command_in_the_pages_can_be_typed(arguments: list[str]) -> None:
    subcommand(arguments[0]).make_context(arguments[0], arguments[1:])


def test_an_option_in_the_pages_is_one_of_some_command() -> None:
    known = {name for command in COMMANDS for option in command.params for name in option.opts + option.secondary_opts}
    scripts = [*(ROOT / "examples").rglob("*.py"), ROOT / "tests" / "mutants" / "mutants.py"]
    script_texts = "".join(path.read_text(encoding="utf-8") for path in scripts)
    options = set(re.findall(r"--[a-z][a-z-]+", ALL_TEXT))
    assert [option for option in sorted(options - known) if f'"{option}"' not in script_texts] == []


def test_the_examples_are_named() -> None:
    examples = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in examples if f"examples/{name})" not in ALL_TEXT] == []
