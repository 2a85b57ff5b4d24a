"""Functions of a process that uses PyTorch, which writes to read-only arrays."""

import ctypes
import sys
import types

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves import python_functions

ROW = fl.TensorType(np.float32, [2])
ROWS = fl.SequenceType(ROW)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is remembered, for tests that follow."""
    monkeypatch.setattr(python_functions, "has_pytorch", lambda: True)


def overwrite(array: np.ndarray) -> np.ndarray:
    """Returns an array that shares the memory of another one, and may be written to, as PyTorch's tensors do."""
    kind = ctypes.c_float * array.size
    return np.ctypeslib.as_array(kind.from_address(array.ctypes.data)).reshape(array.shape)


@pytest.mark.parametrize("is_imported", [True, False], ids=["imported", "imported by the first call"])
@pytest.mark.parametrize("vectorized", [False, True])
def test_functions_that_may_use_pytorch_get_memory_of_their_own(
    monkeypatch: pytest.MonkeyPatch, *, is_imported: bool, vectorized: bool
) -> None:
    def add_one(model, one):
        assert not model.flags.writeable
        overwrite(model)[:] += 1
        overwrite(one["row"])[:] += 1
        return model + one["row"]

    def import_and_add_one(model, one):
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        return add_one(model, one)

    if is_imported:
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    function = add_one if is_imported else import_and_add_one
    step = fedstack.python_computation([ROW, {"row": ROW}], ROW, vectorized=vectorized)(function)

    @fl.federated_computation(fl.FederatedType(ROW, fl.SERVER), fl.FederatedType({"row": ROW}, fl.CLIENTS))
    def round_of(model, ones):
        return fl.federated_sum(fl.federated_map(step, (fl.federated_broadcast(model), ones)))

    model, ones = np.zeros(2, np.float32), [{"row": np.ones(2, np.float32)} for _ in range(4)]
    with fedstack.create_sync_local_execution_context():
        for _ in range(2):
            np.testing.assert_array_equal(round_of(model, ones), [12, 12])
    np.testing.assert_array_equal(model, 0)
    np.testing.assert_array_equal([one["row"] for one in ones], np.ones((4, 2)))


def test_elements_of_sequences_have_memory_of_their_own_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    @fedstack.python_computation([ROWS], ROW)
    def total(rows):
        for row in rows:
            overwrite(row)[:] += 1
        return sum(rows)

    data = [np.ones(2, np.float32)] * 3
    with fedstack.create_sync_local_execution_context():
        for _ in range(2):
            np.testing.assert_array_equal(total(data), [3, 3])
