"""What became of each client, as a pandas DataFrame."""

import math

import federated_language as fl
import numpy as np

import fedstack
from fedstack import ClientFailures
from fedstack.executors.survivors.outcomes import ClientOutcome

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)


@fedstack.python_computation([INT], INT)
def positive(x):
    if x < 0:
        raise ValueError("negative")
    return x


@fedstack.python_computation([INT, INT], INT)
def below(x, most):
    return most - x


@fl.federated_computation(INTS)
def total(xs):
    kept = fl.federated_map(positive, xs)
    most = fl.federated_broadcast(fl.federated_max(kept))
    return fl.federated_sum(fl.federated_map(below, (kept, most)))


def test_outcomes_are_a_data_frame() -> None:
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            total([1, -2])
    frame = outcomes.to_frame()
    assert list(frame.columns) == ["call", "phase", "client", "kind", "worker", "seconds", "error"]
    assert list(frame["kind"]) == ["done", "failed", "done", "absent"]
    assert "negative" in frame["error"][1]
    assert frame["error"].isna().tolist() == [True, False, True, True]
    assert math.isnan(frame["seconds"][3])
    assert "<ClientOutcomes of 4" in repr(outcomes)
    assert outcomes[:1] == [ClientOutcome(0, 0, 0, "done", "", outcomes[0].seconds)]
