"""Values of clients in Ray's object store are read where clients run; what cannot be read says whose it is."""

import contextlib
import os
import time
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
import ray

import fedstack
from fedstack.data import object_refs, ray_tables
from fedstack.data.ray_tables import RayRows
from fedstack.errors import InvalidValueError, RemoteError, TypeMismatchError

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of its own, which it uses
]

VECTOR = fl.TensorType(np.float32, [None])


@fedstack.python_computation(VECTOR, np.float32)
def total(values):
    return values.sum()


@fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS))
def mean_total(values):
    return fl.federated_mean(fl.federated_map(total, values))


@fedstack.python_computation(VECTOR, np.int32)
def process(values):
    return os.getpid()


@fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS))
def processes(values):
    return fl.federated_map(process, values)


X, Y = fl.TensorType(np.float32, [None, 3]), fl.TensorType(np.int64, [None])
TABLE = fl.StructWithPythonType([("y", Y), ("x", X), ("name", fl.TensorType(np.str_, [None]))], dict)


@fedstack.python_computation(TABLE, np.int64)
def first_row(rows):
    return rows["y"][0]


@fl.federated_computation(fl.FederatedType(TABLE, fl.CLIENTS))
def first_rows(rows):
    return fl.federated_map(first_row, rows)


def given(clients: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.random(40_000 + client).astype(np.float32) for client in range(clients)]


@ray.remote
def made(client: int) -> np.ndarray:
    if client == 6:
        raise KeyError("no such client")
    return given(client + 1)[client]


@ray.remote(max_retries=0)
def ends() -> None:
    os._exit(1)


@ray.remote
class Owner:
    def put(self, value):
        return [ray.put(value)]


def is_lost(ref) -> bool:
    try:
        ray.get(ref)
    except ray.exceptions.OwnerDiedError:
        return True
    return False


def wait_until(is_so, what: str) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, f"not within 60 s: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def contexts(kind: str) -> Iterator[None]:
    if kind == "local":
        context = fedstack.create_sync_local_execution_context()
    elif kind == "workers":
        context = fedstack.create_sync_remote_execution_context(fedstack.service.local_worker_pool(2))
    else:
        context = fedstack.create_sync_ray_execution_context(num_workers=2, resources_per_worker={"CPU": 0.5})
    with context:
        yield


@pytest.fixture(scope="module", params=["local", "actors"])
def context(request, cluster):
    with contexts(request.param):
        yield request.param


def local():
    return contexts("local")


class TestObjectRefs:
    def test_give_the_bits_of_the_values_themselves(self, context):
        values = given(11)
        mixed = [ray.put(value) if client % 4 else value for client, value in enumerate(values)]
        expected = mean_total(values)
        assert mean_total([ray.put(value) for value in values]) == expected
        assert mean_total(mixed) == expected

    def test_of_tasks_are_waited_for(self, context):
        assert mean_total([made.remote(client) for client in range(3)]) == mean_total(given(3))

    def test_of_a_task_that_failed_show_its_error(self, context):
        with pytest.raises(InvalidValueError) as caught:
            mean_total([made.remote(client) for client in range(4, 9)])
        assert "The Ray task that should create the value at arg[client 2] raised KeyError: 'no such client'" in str(
            caught.value
        )
        assert 'raise KeyError("no such client")' in str(caught.value)
        assert "\x1b" not in str(caught.value)

    def test_of_a_task_whose_process_ended_say_so(self):
        found = r"^The process that should create the value at arg\[client 1\] terminated \(WorkerCrashedError: .*\)"
        with local(), pytest.raises(RemoteError, match=found):
            mean_total([ray.put(given(1)[0]), ends.remote()])

    def test_of_a_task_that_was_cancelled_say_so(self):
        never = made.options(resources={"nowhere": 1}).remote(1)
        ray.cancel(never)
        found = r"^The Ray task that should create the value at arg\[client 1\] was cancelled; run the task again"
        with local(), pytest.raises(InvalidValueError, match=found):
            mean_total([ray.put(given(1)[0]), never])

    def test_to_whole_structs_may_stand_beside_structs_of_them(self, context):
        kind = fl.StructWithPythonType([("a", np.int32), ("b", VECTOR)], dict)

        @fedstack.python_computation(kind, np.float32)
        def product(data):
            return np.float32(data["a"] * data["b"].sum())

        @fl.federated_computation(fl.FederatedType(kind, fl.CLIENTS))
        def products(data):
            return fl.federated_map(product, data)

        values = [{"a": client, "b": value} for client, value in enumerate(given(3))]
        mixed = [ray.put(values[0]), {"a": ray.put(1), "b": ray.put(values[1]["b"])}, {**values[2], "a": ray.put(2)}]
        assert products(mixed) == products(values)

    def test_whose_owner_has_died_say_so(self, context):
        owner = Owner.remote()
        (lost,) = ray.get(owner.put.remote(np.zeros(50_000, np.float32)))
        ray.kill(owner)
        wait_until(lambda: is_lost(lost), "the loss of what the actor had put")
        with pytest.raises(RemoteError, match=r"at arg\[client 5\]: OwnerDiedError: The object's owner has exited;"):
            mean_total([*map(ray.put, given(5)), lost])

    def test_of_a_ray_that_was_shut_down_start_no_other(self, monkeypatch):
        ref = ray.put(given(1)[0])
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "get", None)
        with (
            local(),
            pytest.raises(
                InvalidValueError,
                match=r"at arg\[client 0\], found an ObjectRef of a Ray instance that has been shut down",
            ),
        ):
            mean_total([ref])

    def test_to_values_of_another_type_say_what_those_values_would(self, context):
        values = [*given(4), np.zeros(3, np.int64)]
        with pytest.raises(TypeMismatchError) as expected:
            mean_total(values)
        with pytest.raises(TypeMismatchError) as found:
            mean_total([ray.put(value) for value in values])
        assert str(found.value) == str(expected.value)
        assert "client 4" in str(found.value)


def test_the_driver_reads_nothing_that_actors_can_read(clients, monkeypatch) -> None:
    def fails(refs, where):
        raise AssertionError("the driver has read values")

    values = given(4)
    monkeypatch.setattr(object_refs, "read_refs", fails)
    monkeypatch.setattr(ray_tables, "read_refs", fails)
    with contexts("actors"):
        assert mean_total([ray.put(value) for value in values]) == np.mean([value.sum() for value in values])
        found = first_rows(list(clients.values()))
    assert [int(y) for y in found] == list(range(5))


@pytest.fixture(scope="module")
def clients(cluster) -> dict[str, RayRows]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"who": f"c{row % 5}", "x": np.full(3, row, np.float32), "y": row, "name": f"n{row}"} for row in range(60)]
    return fedstack.by_client(ray.data.from_items(rows, override_num_blocks=3), "who")


class TestDatasets:
    def test_have_their_clients_in_order(self, clients):
        assert list(clients) == ["c0", "c1", "c2", "c3", "c4"]
        assert [len(rows) for rows in clients.values()] == [12] * 5
        assert repr(clients["c3"]) == "<RayRows: 12 rows of x, y, name>"

    def test_give_each_client_its_rows_as_arrays(self, clients, context):
        @fedstack.python_computation(TABLE, (np.int64, np.float32, np.str_))
        def sums(rows):
            return rows["y"].sum(), rows["x"].sum(), b" ".join(rows["name"][:2])

        @fl.federated_computation(fl.FederatedType(TABLE, fl.CLIENTS))
        def of_all(rows):
            return fl.federated_map(sums, rows)

        found = of_all(list(clients.values()))
        assert [int(y) for y, _, _ in found] == [sum(range(client, 60, 5)) for client in range(5)]
        assert [int(x) for _, x, _ in found] == [3 * sum(range(client, 60, 5)) for client in range(5)]
        assert [names for _, _, names in found] == [f"n{client} n{client + 5}".encode() for client in range(5)]

    @pytest.mark.parametrize("batched", [False, True])
    def test_give_each_client_its_rows_as_a_sequence(self, clients, context, batched):
        row = [("name", np.str_), ("y", np.int64), ("x", fl.TensorType(np.float32, [3]))]
        batch = [("name", fl.TensorType(np.str_, [None])), ("y", Y), ("x", X)]
        kind = fl.SequenceType(fl.StructWithPythonType(batch if batched else row, dict))

        @fedstack.python_computation(kind, (np.int64, np.int32))
        def counted(rows):
            found = list(rows)
            return np.int64(sum(int(np.sum(one["y"])) for one in found)), np.int32(len(found))

        @fl.federated_computation(fl.FederatedType(kind, fl.CLIENTS))
        def of_all(rows):
            return fl.federated_map(counted, rows)

        rows = [one.batches(5, shuffle_seed=1) if batched else one for one in clients.values()]
        assert [(int(y), int(n)) for y, n in of_all(rows)] == [
            (sum(range(client, 60, 5)), 3 if batched else 12) for client in range(5)
        ]

    def test_say_what_they_have_where_something_else_is_wanted(self, clients):
        def run(kind):
            @fl.federated_computation(fl.FederatedType(kind, fl.CLIENTS))
            def same(rows):
                return rows

            with local():
                same(list(clients.values()))

        with pytest.raises(TypeMismatchError, match=r"found rows of x, y, name; at arg\[client 0\]; select columns"):
            run(fl.SequenceType(fl.StructType([("x", np.float32)])))
        with pytest.raises(TypeMismatchError, match=r"y=int32.*found.*y=int64.*client 0"):
            run(fl.SequenceType(fl.StructType([("x", X), ("y", np.int32), ("name", np.str_)])))

    def test_may_have_a_client_in_several_blocks(self, context):
        blocks = [{"x": given(1)[0][:size]} for size in (7, 1, 5)]
        parts = [(ray.put(block), start, stop) for block, start, stop in zip(blocks, (3, 0, 0), (7, 1, 5))]
        rows = RayRows(("x",), tuple(parts))
        assert len(rows) == 10
        everything = np.concatenate([blocks[0]["x"][3:], blocks[1]["x"], blocks[2]["x"]])

        @fl.federated_computation(fl.FederatedType(fl.SequenceType(np.float32), fl.CLIENTS))
        def same(rows):
            return rows

        assert list(same([rows])[0]) == list(everything)

    def test_refuse_rows_of_nobody(self):
        dataset = ray.data.from_items([{"who": who, "x": 1} for who in ("a", None, "b")])
        with pytest.raises(InvalidValueError, match=r"Expected a client id in every row of column 'who', found None"):
            fedstack.by_client(dataset, "who")

    @pytest.mark.filterwarnings("ignore:Use .expr.:UserWarning")
    def test_without_rows_have_no_clients(self):
        dataset = ray.data.from_items([{"who": "a", "x": 1}])
        assert fedstack.by_client(dataset.filter(lambda row: row["x"] > 1), "who") == {}
        assert fedstack.by_client(dataset.map(lambda row: row).filter(lambda row: row["x"] > 1), "who") == {}

    def test_keep_the_columns_that_are_asked_for(self):
        dataset = ray.data.from_items([{"who": who, "x": 1} for who in "ba"])

        def shown(columns):
            return repr(fedstack.by_client(dataset, "who", columns=columns))

        assert shown(["x", "who"]) == "{'a': <RayRows: 1 row of x, who>, 'b': <RayRows: 1 row of x, who>}"
        assert shown([]) == "{'a': <RayRows: 1 row of no columns>, 'b': <RayRows: 1 row of no columns>}"

    def test_say_what_their_functions_raised(self):
        def fails(batch):
            raise ValueError("no \x1b[1m such batch")

        dataset = ray.data.from_items([{"who": "a", "x": 1}]).map_batches(fails)
        with pytest.raises(InvalidValueError) as caught:
            fedstack.by_client(dataset, "who")
        first, *lines = str(caught.value).splitlines()
        assert first == (
            r"A function applied by the dataset raised ValueError: no \x1b[1m such batch in by_client(dataset, 'who')"
        )
        assert any("raise ValueError(" in line for line in lines)
        assert len(lines) < 5
        assert caught.value.__suppress_context__

    @pytest.mark.parametrize(
        ("who", "message"),
        [
            ([1, 2], r"ArrowTypeError: Sorting not supported.*; use ids of one sortable type"),
            ({"a": 1}, r"in column .*, found one that cannot be hashed: unhashable type: 'dict'"),
        ],
    )
    def test_need_ids_that_are_in_an_order(self, who, message):
        with pytest.raises(InvalidValueError, match=message) as caught:
            fedstack.by_client(ray.data.from_items([{"who": who, "x": 1}]), "who")
        assert len(str(caught.value).splitlines()) == 1

    def test_are_no_values_by_themselves(self):
        dataset = ray.data.from_items([{"who": 1, "x": 2}])
        for value in (dataset, dataset.groupby("who")):
            for given_as in (value, [value], [given(1)[0], value]):
                with (
                    local(),
                    pytest.raises(TypeMismatchError, match=r"found a ray.data.*fedstack\.by_client\(ds, id\)"),
                ):
                    mean_total(given_as)
        with pytest.raises(TypeMismatchError, match=r"pass the dataset itself: by_client\(dataset, 'who'\)"):
            fedstack.by_client(dataset.groupby("who"), "who")
        with pytest.raises(InvalidValueError, match=r"named 'whom' for by_client, found the columns \['who', 'x'\]"):
            fedstack.by_client(dataset, "whom")


def test_a_function_may_refer_to_what_is_in_the_object_store() -> None:
    factor = {"of": [ray.put(np.float32(3))]}

    @fedstack.python_computation(VECTOR, np.float32)
    def scaled(values):
        return ray.get(factor["of"][0]) * values.sum()

    @fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS))
    def mean_scaled(values):
        return fl.federated_mean(fl.federated_map(scaled, values))

    with fedstack.create_sync_ray_execution_context(num_workers=2, resources_per_worker={"CPU": 0.5}):
        assert mean_scaled([np.ones(2, np.float32), np.ones(4, np.float32)]) == 9
