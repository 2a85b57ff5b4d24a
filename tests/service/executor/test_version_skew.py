"""A worker may have another version of a function's module: the caller is warned, or the worker refuses it."""

import asyncio
import importlib
import inspect
import os
import py_compile
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from serving import Server, served

import fedstack
from fedstack.computations.leaves import carrier_policy, named_functions, portability
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.named_functions import function_digest, module_digest
from fedstack.errors import CarrierError
from fedstack.executors import RemoteExecutor
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.proto.carriers_pb2 import PythonReference
from fedstack.transport.peers.io_loop import io_loop

LOGGER = portability.__name__
MODULE = """
import numpy as np
import fedstack

FACTOR = 2

def helper(x):
    return x * FACTOR

@fedstack.python_computation([np.float32], np.float32)
def scaled(x):
    return helper(x)

@fedstack.python_computation([np.float32], np.float32)
def squared(x):
    return x * x
"""
OTHER_CONSTANT = MODULE.replace("FACTOR = 2", "FACTOR = 3")
OTHER_FUNCTION = MODULE.replace("return helper(x)", "return helper(x + 0)")


@pytest.fixture(autouse=True)
def nobody_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portability, "_warned_of", set())


@pytest.fixture(scope="module")
def workers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a version of each module for workers."""
    folder = tmp_path_factory.mktemp("workers")
    sources = {
        "skew_same": MODULE.replace("\n", "\r\n"),
        "skew_constant": OTHER_CONSTANT,
        "skew_constant_too": OTHER_CONSTANT,
        "skew_function": OTHER_FUNCTION,
    }
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, newline="")
    without_source(folder, "skew_no_source")
    return folder


def without_source(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text(OTHER_CONSTANT)
    py_compile.compile(str(folder / f"{name}.py"), str(folder / f"{name}.pyc"))
    (folder / f"{name}.py").unlink()


def worker(folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    modules = ",".join(sorted(path.stem for path in folder.glob("skew_*")))
    with served("--allow-module", modules, *options, environment={"PYTHONPATH": path, **variables}) as made:
        yield made


@pytest.fixture(scope="module")
def lenient(workers_folder: Path) -> Iterator[Server]:
    yield from worker(workers_folder)


@pytest.fixture(scope="module")
def strict(workers_folder: Path) -> Iterator[Server]:
    yield from worker(workers_folder, FEDSTACK_STRICT_MODULES="1")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports the client's version of a module."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(MODULE)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in [name for name in sys.modules if name.startswith("skew_")]:
        del sys.modules[name]


def sum_of(leaf: Any) -> Any:
    clients = fl.FederatedType(np.float32, fl.CLIENTS)
    return fl.federated_computation(lambda xs: fl.federated_sum(fl.federated_map(leaf, xs)), clients)


def run(server: Server, *leaves: Any) -> list[Any]:
    with fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
        return [sum_of(leaf)([1.0, 2.0]) for leaf in leaves]


def test_another_constant_at_the_worker_is_warned_of_once_a_module(
    lenient: Server, module: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = module("skew_constant")
    assert run(lenient, found.scaled, found.squared, found.scaled) == [9.0, 5.0, 9.0]  # the worker's, with 3 for 2
    assert [record.getMessage() for record in caplog.records if record.name == LOGGER] == [
        f"The module skew_constant on the worker at {lenient.target} differs from the local version, so its functions "
        "may return different results on the worker; install the same version here and on the worker, or start "
        "the worker with --strict-modules to reject such functions"
    ]


def test_a_client_that_comes_when_the_function_is_loaded_already_is_warned_too(
    lenient: Server,
    module: Callable[[str], Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = module("skew_constant")
    run(lenient, found.squared)
    caplog.clear()
    monkeypatch.setattr(portability, "_warned_of", set())  # as in another process
    run(lenient, found.squared)
    assert [record.args for record in caplog.records if record.name == LOGGER] == [("skew_constant", lenient.target)]


def test_a_function_that_is_created_as_a_value_is_warned_of(
    lenient: Server, module: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = module("skew_constant_too")

    async def create() -> None:
        [stub] = make_stubs(lenient.target, None)
        executor = RemoteExecutor(stub)
        executor.set_cardinalities({})
        await executor.create_value(found.scaled)
        executor.close()
        await io_loop.run(stub.close())

    asyncio.run(create())
    assert [record.args for record in caplog.records if record.name == LOGGER] == [
        ("skew_constant_too", lenient.target)
    ]


def test_a_strict_worker_refuses_another_constant(strict: Server, module: Callable[[str], Any]) -> None:
    with pytest.raises(
        CarrierError,
        match="Expected the sender's version of the module skew_constant, found a version in which scaled is the same "
        "but other lines differ; install the same version on the driver's machine and the worker, or start "
        "the worker without --strict-modules",
    ):
        run(strict, module("skew_constant").scaled)


@pytest.mark.parametrize("kind", ["lenient", "strict"])
def test_another_version_of_the_function_itself_is_refused(
    kind: str, request: pytest.FixtureRequest, module: Callable[[str], Any]
) -> None:
    with pytest.raises(CarrierError, match=r"Expected the sender's version of skew_function:scaled, found another"):
        run(request.getfixturevalue(kind), module("skew_function").scaled)


@pytest.mark.parametrize("name", ["skew_same", "skew_no_source"])
def test_ends_of_lines_and_a_module_without_a_source_file_are_no_other_version(
    name: str, strict: Server, module: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    leaf = module(name).squared
    if name == "skew_no_source":
        # Of its functions there is no source at the worker either; the sender has none to compare with.
        importlib.import_module(name).__dict__.pop("__file__")
        Path(leaf.__wrapped__.__code__.co_filename).unlink()
    assert run(strict, leaf) == [5.0]
    assert not [record for record in caplog.records if record.name == LOGGER]


def test_a_reference_of_an_older_client_is_followed_as_before(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("skew_older")
    monkeypatch.setattr(carrier_policy, "policy", CarrierPolicy(modules=["skew_older"], strict_modules=True))
    computation = computation_pb2.Computation(type=fl.FunctionType(np.float32, np.float32).to_proto())
    digest = function_digest(sys.modules["skew_older"].scaled.__wrapped__)
    computation.data.content.Pack(PythonReference(module="skew_older", qualname="scaled", digest=digest))
    leaf = load_leaf(computation)
    assert (leaf.call(np.float32(2)), leaf.differing_module) == (4, "")
    computation.data.content.Pack(PythonReference(module="skew_older", qualname="scaled", module_digest=b"other"))
    with pytest.raises(CarrierError, match="the sender's version of the module skew_older"):
        load_leaf(computation)


def test_the_digest_of_a_function_is_computed_once_until_its_file_changes(
    module: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    getsource = inspect.getsource

    def counting(found: Any) -> str:
        read.append(found)
        return getsource(found)

    monkeypatch.setattr(named_functions.inspect, "getsource", counting)
    module("skew_function_digest")
    functions = [sys.modules["skew_function_digest"].scaled.__wrapped__, sys.modules["skew_function_digest"].helper]
    digests = [[function_digest(function) for function in functions] for _ in range(5)]
    assert read == functions
    assert [len(set(found)) for found in zip(*digests)] == [1, 1]
    (tmp_path / "skew_function_digest.py").write_text(OTHER_FUNCTION + "\n")
    assert function_digest(functions[0]) != digests[0][0]


def test_the_digest_of_a_module_is_computed_once_until_its_file_changes(
    module: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    getsource = inspect.getsource

    def counting(found: Any) -> str:
        read.append(found)
        return getsource(found)

    monkeypatch.setattr(named_functions.inspect, "getsource", counting)
    found = module("skew_digest")
    digests = {module_digest("skew_digest") for _ in range(5)}
    assert (len(digests), read) == (1, [found])
    (tmp_path / "skew_digest.py").write_text(OTHER_CONSTANT + "\n")
    assert module_digest("skew_digest") not in digests
    assert read == [found, found]


@pytest.mark.parametrize("name", ["math", "sys", "no_such_module_anywhere"])
def test_what_has_no_source_file_has_no_digest(name: str) -> None:
    assert module_digest(name) == b""


def test_a_worker_that_names_modules_which_nobody_here_has_is_not_listened_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    portability.warn_of_differing(["no_such_module_anywhere", "x" * 10_000, "\n"], "a worker")
    assert not caplog.records
    assert not portability._warned_of
