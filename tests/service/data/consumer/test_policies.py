"""Functions of datasets run under the policy that they were let in with, wherever and whenever they are loaded."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from calling import WALL
from federated_language.proto import computation_pb2

import fedstack
from fedstack.errors import CarrierError, TypeMismatchError
from fedstack.leaves import CarrierPolicy
from fedstack.proto.carriers_pb2 import PythonReference
from fedstack.service.data import (
    Dataset,
    DispatchServer,
    WorkerConfig,
    WorkerServer,
    distribute,
    from_dataset_id,
    register_dataset,
)

MODULE = """
import numpy as np
import fedstack

@fedstack.python_computation([np.int64], np.int64)
def increased(x):
    return x + 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with a function; another one each time."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"policy_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    importlib.invalidate_caches()
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.mark.parametrize(("first", "by"), [("batch", "value"), ("shuffle", "value"), ("shuffle", "reference")])
def test_a_function_after_a_batch_or_a_shuffle_is_loaded_under_the_policy_given(
    service: DispatchServer, module: Any, first: str, by: str
) -> None:
    before = Dataset.range(12).shuffle(5, seed=1)
    if first == "batch":
        total = fedstack.python_computation([fl.TensorType(np.int64, [None])], np.int64)(lambda xs: xs.sum())
        before = Dataset.range(12).batch(1).map(total)
    function = module.increased
    if by == "value":
        function = fedstack.python_computation([np.int64], np.int64)(lambda x: x + 1)
    dataset_id = register_dataset(service, before.map(function))
    policy = CarrierPolicy(python_code=True) if by == "value" else CarrierPolicy(modules=[module.__name__])
    found = from_dataset_id("distributed_epoch", service, dataset_id, policy=policy)
    assert sorted(map(int, found)) == list(range(1, 13))
    with pytest.raises(CarrierError, match="permit these functions"):
        from_dataset_id("distributed_epoch", service, dataset_id, policy=CarrierPolicy(modules=["another"]))


def test_a_policy_is_an_object_and_no_word(service: DispatchServer) -> None:
    dataset_id = register_dataset(service, Dataset.range(3))
    for give in (
        lambda policy: from_dataset_id("distributed_epoch", service, dataset_id, policy=policy),
        lambda policy: WorkerConfig(service.target, policy=policy),
    ):
        with pytest.raises(TypeMismatchError, match=r"policy to be a fedstack\.leaves\.CarrierPolicy, found str 'all'"):
            give("all")


def test_a_strict_worker_runs_nothing_that_a_laxer_one_of_its_process_has_loaded(module: Any) -> None:
    leaf = computation_pb2.Computation(type=fl.FunctionType(np.int64, np.int64).to_proto())
    leaf.data.content.Pack(PythonReference(module=module.__name__, qualname="increased", module_digest=b"another"))
    found: list[Any] = []
    for is_strict in (False, True):
        policy = CarrierPolicy(modules=[module.__name__], strict_modules=is_strict)
        with DispatchServer() as dispatcher:
            config = WorkerConfig(dispatcher.target, policy=policy, dispatcher_timeout_ms=1000 * WALL)
            with WorkerServer(config):
                elements = Dataset.range(3).map(leaf).apply(distribute("distributed_epoch", dispatcher))
                if is_strict:
                    with pytest.raises(CarrierError, match="Expected the sender's version of the module"):
                        list(elements)
                else:
                    found = list(map(int, elements))
    assert found == [1, 2, 3]
