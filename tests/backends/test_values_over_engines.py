"""Values of clients that are elsewhere: workers of an engine that can read them do, and to others they are sent."""

import contextlib
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from engines import ThreadBackend, context_over
from shelf import Shelf, Shelved

import fedstack
from fedstack.errors import RemoteError, TypeMismatchError

# What runs tasks in a process stays for the next task, and here that is this process.
pytestmark = pytest.mark.fedstack_leak_check(False)

DATA = fl.StructType([("x", fl.TensorType(np.float32, [None])), ("n", np.int32)])
VECTOR = fl.TensorType(np.float32, [8192])


@fedstack.python_computation((DATA, VECTOR), VECTOR)
def update(data, model):
    return model * data["x"].sum() + np.float32(data["n"])


@fl.federated_computation(
    fl.FederatedType(DATA, fl.CLIENTS), fl.FederatedType(VECTOR, fl.CLIENTS), fl.FederatedType(VECTOR, fl.SERVER)
)
def mean_update(data, offsets, model):
    updates = fl.federated_map(update, (data, fl.federated_broadcast(model)))
    return fl.federated_mean(updates), fl.federated_sum(offsets)


def given(clients: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.random(client % 4 + 1).astype(np.float32), "n": client} for client in range(clients)]


MODEL = np.linspace(0, 1, 8192, dtype=np.float32)
OFFSETS = [np.full(8192, client, np.float32) for client in range(21)]


@contextlib.contextmanager
def engine(workers: int, reads: bool) -> Iterator[ThreadBackend]:
    backend = ThreadBackend(workers)
    if reads:
        backend.reads = (Shelved,)
    with context_over(backend):
        yield backend


def bytes_sent(backend: ThreadBackend) -> int:
    return sum(getattr(one, "nbytes", 0) for task in backend.tasks for part in task.arguments[2:] for one in part)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_results_are_those_of_values_that_were_given(workers, reads):
    shelf, values = Shelf(), given(21)
    mixed = [value if client == 4 else shelf.put(value) for client, value in enumerate(values)]
    elsewhere = [shelf.put(value) for value in OFFSETS]
    with fedstack.create_sync_local_execution_context():
        expected = mean_update(values, OFFSETS, MODEL)
    with engine(workers, reads):
        for data, offsets in ((mixed, elsewhere), (values, elsewhere)):
            found = mean_update(data, offsets, MODEL)
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])


def test_what_workers_read_is_not_sent():
    shelf = Shelf()
    elsewhere = [shelf.put(value) for value in OFFSETS]
    data = [shelf.put(value) for value in given(21)]
    with engine(2, reads=True) as backend:
        mean_update(data, elsewhere, MODEL)
        assert bytes_sent(backend) < 2.5 * MODEL.nbytes
    assert shelf.read == list(range(42))


@pytest.mark.parametrize("reads", [False, True])
def test_errors_name_the_client(reads):
    shelf = Shelf()
    data = [shelf.put(value) for value in given(21)]
    data[13] = shelf.put({"x": "none", "n": 3})
    with engine(2, reads), pytest.raises(TypeMismatchError, match=r"Expected float32\[\?\].*client 13\]\.x"):
        mean_update(data, OFFSETS, MODEL)
    data[12] = shelf.put(KeyError("gone"))
    with engine(2, reads), pytest.raises(RemoteError, match=r"has lost a value.*client 12\]"):
        mean_update(data, OFFSETS, MODEL)


@pytest.mark.parametrize("reads", [False, True])
def test_a_struct_may_be_elsewhere_beside_one_whose_members_are(reads):
    shelf, values = Shelf(), given(21)
    mixed = [shelf.put(value) if client % 2 else value for client, value in enumerate(values)]
    mixed[4] = {"n": 4, "x": shelf.put(values[4]["x"])}
    mixed[6] = [shelf.put(values[6]["x"]), shelf.put(6)]
    with fedstack.create_sync_local_execution_context():
        expected = mean_update(values, OFFSETS, MODEL)
        np.testing.assert_array_equal(mean_update(mixed, OFFSETS, MODEL)[0], expected[0])
    with engine(3, reads) as backend:
        shelf.reads.clear()
        np.testing.assert_array_equal(mean_update(mixed, OFFSETS, MODEL)[0], expected[0])
        assert len(backend.tasks) == 3
    assert shelf.read == list(range(13))
    mixed[6] = {"x": values[6]["x"], "n": shelf.put("six")}
    with engine(2, reads), pytest.raises(TypeMismatchError, match=r"Expected int32, found .*'six'; at .*client 6\]\.n"):
        mean_update(mixed, OFFSETS, MODEL)
    mixed[6] = {"x": values[6]["x"], "n": shelf.put(KeyError("gone"))}
    with engine(2, reads), pytest.raises(RemoteError, match=r"has lost a value.*client 6\]\.n"):
        mean_update(mixed, OFFSETS, MODEL)
    mixed[8] = {"x": values[8]["x"]}
    with engine(2, reads), pytest.raises(TypeMismatchError, match=r"found no 'n'; at .*client 8\]"):
        mean_update(mixed, OFFSETS, MODEL)
