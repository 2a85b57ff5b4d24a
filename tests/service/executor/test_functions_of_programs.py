"""No worker runs the program that uses it: functions of a program travel by value, whatever its module is called."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import WALL
from serving import Server, served

# It calls its computation at its own top level, as a script does, and its folder is on the worker's path.
PROGRAM = """
import collections, enum, os, sys
import federated_language as fl
import numpy as np
import fedstack

with open(os.environ["PROGRAM_LOG"], "a") as log:
    print(os.getpid(), file=log)

Pair = collections.namedtuple("Pair", "x y")
FACTOR = 3

class Sign(enum.Enum):
    PLUS = 1

def scaled(number):
    return number * FACTOR * Sign.PLUS.value

@fedstack.python_computation([Pair(np.int32, np.int32)], np.int32)
def product(pair):
    assert type(pair).__name__ == "Pair"
    return np.int32(scaled(pair.x * pair.y))

@fl.federated_computation(fl.FederatedType(Pair(np.int32, np.int32), fl.CLIENTS))
def total(pairs):
    return fl.federated_sum(fl.federated_map(product, pairs))

context = fedstack.create_sync_remote_execution_context(os.environ["PROGRAM_WORKER"])
with context, fedstack.use_context(context):
    try:
        print(total([Pair(1, 2), Pair(3, 4)]))
    except fedstack.FedstackError as error:
        print(error)
"""
STARTED_AS = [
    ["a_program.py"],
    ["-m", "a_program"],
    ["-m", "a_package"],
    ["-c", "import a_package.__main__"],
    ["-c", "import a_program"],
    ["-c", "import runpy; runpy.run_path('a_program.py')"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    (made / "a_package").mkdir()
    (made / "a_package" / "__init__.py").touch()
    for path in ("a_program.py", "a_package/__main__.py"):
        (made / path).write_text(PROGRAM)
    return made


def worker(folder: Path, *options: str) -> Iterator[Server]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with served(*options, environment={"PYTHONPATH": path}) as made:
        yield made


@pytest.fixture(scope="module")
def takes_code(folder: Path) -> Iterator[Server]:
    yield from worker(folder, "--allow-python-code")


@pytest.fixture(scope="module")
def takes_references(folder: Path) -> Iterator[Server]:
    yield from worker(folder, "--allow-module", "a_program,a_package")


def run(folder: Path, server: Server, started_as: list[str]) -> tuple[str, int]:
    """Runs the program; returns what it printed, and in how many processes its top level ran."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *started_as],
        cwd=folder,
        env={**os.environ, "PROGRAM_LOG": str(log), "PROGRAM_WORKER": server.target},
        capture_output=True,
        text=True,
        timeout=3 * WALL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), len(log.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("started_as", STARTED_AS, ids=" ".join)
def test_a_function_of_a_program_runs_on_a_worker_that_never_runs_the_program(
    folder: Path, takes_code: Server, started_as: list[str]
) -> None:
    assert run(folder, takes_code, started_as) == ("42", 1)


@pytest.mark.long
@pytest.mark.parametrize("started_as", STARTED_AS, ids=" ".join)
def test_where_no_code_is_taken_the_error_says_that_the_program_would_have_to_run(
    folder: Path, takes_references: Server, started_as: list[str]
) -> None:
    printed, programs = run(folder, takes_references, started_as)
    file = "__main__.py" if "a_package" in started_as[-1] else "a_program.py"
    assert printed.startswith(
        "Expected a portable function, found 'product', which is local to this process (importing "
        f"{file} on a worker would run the script); define it at the top level of a module that is installed on the "
        "worker, or start the worker with --allow-python-code"
    )
    assert programs == 1
