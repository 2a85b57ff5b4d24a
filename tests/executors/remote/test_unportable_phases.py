"""What cannot travel to a worker is found before any client runs, in whichever phase it is."""

import threading

import federated_language as fl
import numpy as np
import pytest
from serving import served

import fedstack
from fedstack.errors import CarrierError

FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)


@pytest.fixture(scope="module")
def worker():
    with served("--allow-python-code") as made:
        yield made


@pytest.mark.parametrize("phase", range(3))
def test_a_function_that_cannot_travel_is_refused_before_any_client_runs(worker, tmp_path, phase):
    ran, lock = str(tmp_path / "ran"), threading.Lock()

    def noting(x, y):
        with open(ran, "a", encoding="utf-8"):
            return x + y

    def locked(x, y):
        with lock:
            return x + y

    pair = [np.float32, np.float32]
    named = [fedstack.python_computation(pair, np.float32)(locked if n == phase else noting) for n in range(3)]

    @fl.federated_computation(FLOATS)
    def in_phases(values):
        found = fl.federated_value(1.0, fl.SERVER)
        for function in named:
            found = fl.federated_sum(fl.federated_map(function, (values, fl.federated_broadcast(found))))
        return found

    with fedstack.create_sync_remote_execution_context([worker.target]):
        with pytest.raises(CarrierError, match="locked"):
            in_phases([1.0, 2.0])
    assert not (tmp_path / "ran").exists()
