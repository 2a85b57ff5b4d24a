"""A runtime of another distribution, in thirty lines, does all that Python leaves do, here and on a worker."""

import contextlib
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2

import fedstack
from fedstack.computations.leaves import leaf_runtimes
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves, allowed_carriers
from fedstack.computations.leaves.portability import check_received
from fedstack.computations.values.columns import ListColumn, ScalarColumn
from fedstack.errors import CarrierError, LeafError, TypeMismatchError
from fedstack.leaves import Leaf, LeafRuntime, register_leaf_runtime
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread

CARRIER = "federated_language.Placement"  # any message will do: its text names a function
SCALAR = fl.TensorType(np.float32)
VECTOR = fl.TensorType(np.float32, [3])
PAIR = fl.to_type({"a": VECTOR, "b": SCALAR})
SEQUENCE = fl.SequenceType(SCALAR)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {}


class TableLeaf(Leaf):
    """Calls a function of a table."""

    def __init__(self, name: str, signature: fl.FunctionType) -> None:
        super().__init__(name, signature.parameter, signature.result)
        self._function = FUNCTIONS[name]

    def evaluate(self, argument: Any) -> Any:
        return self._function(argument)


class TableRuntime(LeafRuntime):
    """Finds functions in a table, by name."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.closed = 0

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        self.threads.append(threading.current_thread())
        named = computation_pb2.Placement()
        leaf_runtimes.content_of(computation).Unpack(named)
        return TableLeaf(named.uri, fl.Type.from_proto(computation.type))

    def close(self) -> None:
        self.closed += 1


def leaf(function: Callable[[Any], Any], parameter: Any, result: Any, kind: str = "data") -> Any:
    """Returns a leaf computation of the runtime, as a front end of its framework would make it."""
    name = getattr(function, "__name__", "") + f"#{len(FUNCTIONS)}"
    FUNCTIONS[name] = function
    proto = computation_pb2.Computation(type=fl.FunctionType(parameter, result).to_proto())
    contents = {"data": proto.data.content, "tensorflow": proto.tensorflow.graph_def, "xla": proto.xla.hlo_module}
    contents[kind].Pack(computation_pb2.Placement(uri=name))
    return fl.framework.ConcreteComputation.from_proto(proto)


def mapped(function: Any) -> Any:
    parameter = function.type_signature.parameter
    return fl.federated_computation(lambda xs: fl.federated_map(function, xs), fl.FederatedType(parameter, fl.CLIENTS))


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> TableRuntime:
    monkeypatch.setattr(leaf_runtimes, "_runtimes", dict(leaf_runtimes._runtimes))
    made = TableRuntime()
    register_leaf_runtime(CARRIER, made)
    return made


@contextlib.contextmanager
def worker(policy: CarrierPolicy) -> Iterator[str]:
    service = ExecutorService(fedstack.local_executor_factory(), policy=policy)
    with ServerThread(GrpcServer([service], port=0)) as server:
        yield server.target


@pytest.fixture(params=["local", "on a worker"])
def place(request: pytest.FixtureRequest, runtime: TableRuntime) -> Iterator[dict[str, Any]]:
    """What makes contexts over a local stack, and over a worker that allows the runtime."""
    if request.param == "local":
        yield {
            "sync": fedstack.create_sync_local_execution_context,
            "async": fedstack.create_async_local_execution_context,
        }
        return
    with worker(CarrierPolicy(runtimes=["federated_language"])) as target:
        yield {
            "sync": lambda: fedstack.create_sync_remote_execution_context([target]),
            "async": lambda: fedstack.create_async_remote_execution_context([target]),
        }


@pytest.fixture
def context(place: dict[str, Any]) -> Iterator[Any]:
    made = place["sync"]()
    with fedstack.use_context(made):
        yield made
    made.close()


# 1. Nothing is refused by name: the registry is asked.


@pytest.mark.parametrize("kind", ["data", "xla", "tensorflow"])
def test_a_runtime_runs_leaves_of_any_block(context: Any, kind: str) -> None:
    double = leaf(lambda x: x * 2, VECTOR, VECTOR, kind)
    found = mapped(double)([vector(1, 2, 3), vector(4, 5, 6)])
    assert [list(one) for one in found] == [[2, 4, 6], [8, 10, 12]]


# 2. A leaf's result is checked, its buffers are copied, its errors are worded.


@pytest.mark.parametrize(
    ("result", "type_spec", "told"),
    [
        ("nonsense", SCALAR, r"Expected float32, found str 'nonsense'; at the result of '.*' at client 0"),
        (np.ones(3), VECTOR, r"Expected float32\[3\], found .*float64.*; at the result of '.*' at client 0"),
        (vector(1, 2), VECTOR, r"Expected shape \[3\] .*found shape \[2\]; at the result of '.*' at client 0"),
        ({"a": vector(1, 2, 3)}, PAIR, r"found no 'b'; at the result of '.*' at client 0"),
        ({"a": vector(1, 2, 3), "b": "x"}, PAIR, r"at result\.b of '.*' at client 0"),
        (None, SCALAR, r"found None; at the result of .* declare another result type"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error_with_path_and_computation(
    context: Any, result: Any, type_spec: Any, told: str
) -> None:
    with pytest.raises(TypeMismatchError, match=told):
        mapped(leaf(lambda x: result, SCALAR, type_spec))([np.float32(1)])


def test_a_result_has_exactly_the_declared_dtype(context: Any) -> None:
    (found,) = mapped(leaf(lambda x: {"a": [1.0, 2.0, 3.0], "b": 0.5}, SCALAR, PAIR))([np.float32(1)])
    assert (found["a"].dtype, found["b"].dtype) == (np.float32, np.float32)


def test_a_buffer_that_a_leaf_fills_anew_is_copied_for_each_client(context: Any) -> None:
    buffer = np.zeros(3, np.float32)

    def refilled(x: Any) -> Any:
        buffer[:] = x
        return buffer

    found = mapped(leaf(refilled, SCALAR, VECTOR))([np.float32(i) for i in range(5)])
    assert [list(one) for one in found] == [[i] * 3 for i in range(5)]


@pytest.mark.parametrize("type_spec", [SCALAR, VECTOR], ids=["scalars", "arrays"])
def test_an_error_names_computation_and_client_and_has_the_lines_of_the_user(context: Any, type_spec: Any) -> None:
    def picky(x: Any) -> Any:
        if np.max(x) > 2:
            raise ValueError("too large")
        return x

    values = [np.full(type_spec.shape, i, np.float32)[()] for i in range(5)]
    with pytest.raises(LeafError, match=r"'picky.*' .*raised ValueError: too large; at client 3\n") as caught:
        mapped(leaf(picky, type_spec, type_spec))(values)
    assert caught.value.client_index == 3
    assert caught.value.computation_name.startswith("picky")
    assert 'raise ValueError("too large")' in str(caught.value)
    assert "fedstack/" not in str(caught.value).replace("/tests/", "")


def test_an_error_at_the_server_names_no_client(context: Any) -> None:
    def broken(x: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(LeafError, match="ValueError: no") as caught:
        leaf(broken, SCALAR, SCALAR)(np.float32(1))
    assert caught.value.client_index is None


def test_arguments_cannot_be_changed(context: Any) -> None:
    def adds_in_place(x: Any) -> Any:
        x += 1
        return x

    with pytest.raises(LeafError, match=r"arguments are read-only because they are shared: modify a copy"):
        mapped(leaf(adds_in_place, VECTOR, VECTOR))([vector(1, 2, 3)])
    with pytest.raises(LeafError, match="AttributeError: 'SequenceArgument' object has no attribute 'append'"):
        mapped(leaf(lambda xs: xs.append(1), SEQUENCE, SCALAR))([[1.0]])


# 3. The default column call keeps the client.


def test_the_default_column_call_says_which_client_it_is_for(runtime: TableRuntime) -> None:
    clients: list[int | None] = []

    class Counting(TableLeaf):
        def call(self, argument: object, client: int | None = None) -> object:
            clients.append(client)
            return super().call(argument, client)

    FUNCTIONS["same"] = lambda x: x
    column = Counting("same", fl.FunctionType(VECTOR, VECTOR)).call_column(ListColumn([vector(1, 2, 3)] * 3), 7, 3)
    assert len(column) == 3
    assert clients == [7, 8, 9]


# 4. Loading blocks no event loop.


async def test_a_leaf_is_never_loaded_on_an_event_loop(place: dict[str, Any], runtime: TableRuntime) -> None:
    made = place["async"]()
    with fedstack.use_context(made):
        assert await mapped(leaf(lambda x: x + 1, SCALAR, SCALAR))([1.0, 2.0]) == [2, 3]
    made.close()
    assert runtime.threads
    assert all(thread.name.startswith("fedstack-leaf") for thread in runtime.threads)


# 5. Sequences come as re-iterables, and go as any re-iterable.


def test_sequences_come_and_go_as_re_iterables(context: Any) -> None:
    def doubled(elements: Any) -> Any:
        assert list(elements) == list(elements)
        return [2 * x for x in elements]

    total = leaf(lambda xs: np.float32(sum(xs)), SEQUENCE, SCALAR)
    double = leaf(doubled, SEQUENCE, SEQUENCE)
    both = fl.federated_computation(
        lambda xs: fl.federated_map(total, fl.federated_map(double, xs)), fl.FederatedType(SEQUENCE, fl.CLIENTS)
    )
    assert both([[1.0, 2.0], [], [3.0]]) == [6, 0, 6]


# 6. What a leaf holds is freed with it, and a runtime is closed when it ends.


def test_a_leaf_that_is_evicted_is_freed(runtime: TableRuntime) -> None:
    freed: list[str] = []
    leaves = LoadedLeaves()
    names: list[str] = []
    for _ in range(leaf_runtimes._MAX_LEAVES + 2):
        loaded: Any = leaves.load(leaf(lambda x: x, SCALAR, SCALAR).to_proto())
        names.append(loaded.name)
        weakref.finalize(loaded, freed.append, loaded.name).atexit = False
        del loaded
    assert freed == names[:2]


def test_a_runtime_is_closed_when_another_takes_its_place(runtime: TableRuntime) -> None:
    register_leaf_runtime("federated_language.Block", runtime)
    register_leaf_runtime(CARRIER, TableRuntime())
    assert runtime.closed == 0
    register_leaf_runtime("federated_language.Block", TableRuntime())
    assert runtime.closed == 1


def test_a_runtime_is_closed_when_the_process_ends() -> None:
    source = """
import fedstack
from fedstack.leaves import LeafRuntime

class Runtime(LeafRuntime):
    def load(self, computation):
        raise NotImplementedError

    def close(self):
        print("closed")

fedstack.register_leaf_runtime("some.Message", Runtime())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "closed\n"


# 7. A worker says which runtimes its clients may use.


@pytest.mark.parametrize(
    ("policy", "is_allowed"),
    [
        (CarrierPolicy(), False),
        (CarrierPolicy(modules=["*"]), False),
        (CarrierPolicy(runtimes=["federated"]), False),
        (CarrierPolicy(runtimes=["federated_language"]), True),
        (CarrierPolicy(runtimes=[CARRIER]), True),
        (CarrierPolicy(python_code=True), True),
    ],
)
def test_a_worker_lists_and_admits_what_its_policy_allows(
    runtime: TableRuntime, policy: CarrierPolicy, is_allowed: bool
) -> None:
    proto = leaf(lambda x: x, SCALAR, SCALAR).to_proto()
    assert (CARRIER in allowed_carriers(policy)) == is_allowed
    if is_allowed:
        check_received(proto, policy)
    else:
        with pytest.raises(CarrierError, match=f"start the worker with --allow-runtime {CARRIER}"):
            check_received(proto, policy)


def test_a_worker_refuses_a_runtime_that_it_does_not_allow(runtime: TableRuntime) -> None:
    with worker(CarrierPolicy()) as target:
        context = fedstack.create_sync_remote_execution_context([target])
        with fedstack.use_context(context), pytest.raises(CarrierError, match=f"--allow-runtime {CARRIER}"):
            mapped(leaf(lambda x: x, SCALAR, SCALAR))([1.0])
        context.close()
    assert runtime.threads == []


def test_a_runtime_of_another_distribution_is_imported_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class EntryPoint:
        value = "framework:runtime"

        def load(self) -> Any:
            raise ModuleNotFoundError("No module named 'framework'")

    monkeypatch.setattr(leaf_runtimes, "_installed", lambda: {CARRIER: EntryPoint()})
    assert CARRIER not in allowed_carriers(CarrierPolicy())
    assert CARRIER in allowed_carriers(CarrierPolicy(runtimes=[CARRIER]))
    told = f"'framework:runtime' for {CARRIER} raised ModuleNotFoundError: .*; repair or uninstall"
    with pytest.raises(CarrierError, match=told):
        check_received(leaf(lambda x: x, SCALAR, SCALAR).to_proto(), CarrierPolicy(runtimes=[CARRIER]))


# 8. A leaf that can run many clients at once does, and is told which.


def test_a_leaf_may_run_whole_columns(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def call_column(self: Any, argument: Any, first_client: int, size: int) -> Any:
        sizes.append(size)
        return ScalarColumn(argument.values * 2)

    monkeypatch.setattr(TableLeaf, "call_column", call_column)
    monkeypatch.setattr(TableLeaf, "prefers_columns", True)
    assert mapped(leaf(lambda x: x * 2, SCALAR, SCALAR))([float(i) for i in range(100)]) == list(range(0, 200, 2))
    assert sum(sizes) == 100
    assert max(sizes) > 1


@pytest.mark.parametrize("in_sequences", [False, True], ids=["values", "elements of sequences"])
def test_a_leaf_may_bound_the_clients_that_run_at_once(
    context: Any, monkeypatch: pytest.MonkeyPatch, in_sequences: bool
) -> None:
    running: list[int] = []
    together: list[int] = []

    def slow(x: Any) -> Any:
        running.append(1)
        together.append(len(running))
        time.sleep(0.005)  # long enough for threads to pay
        running.pop()
        return x

    monkeypatch.setattr(TableLeaf, "max_parallel", 1)
    same: Any = leaf(slow, SCALAR, SCALAR)
    if in_sequences:
        inner = same
        same = fl.federated_computation(lambda xs: fl.sequence_sum(fl.sequence_map(inner, xs)), SEQUENCE)
    values: list[Any] = [float(i) for i in range(30)]
    mapped(same)([[value] for value in values] if in_sequences else values)
    assert set(together) == {1}


def test_what_loading_raises_is_worded_with_runtime_and_carrier(
    context: Any, runtime: TableRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(computation: computation_pb2.Computation) -> Leaf:
        raise ModuleNotFoundError("No module named 'framework'")

    monkeypatch.setattr(runtime, "load", load)
    found = f"Loading a {CARRIER} with TableRuntime raised ModuleNotFoundError: No module named 'framework'"
    with pytest.raises(CarrierError, match=found):
        mapped(leaf(lambda x: x, SCALAR, SCALAR))([1.0])


def test_the_cause_of_what_loading_raised_is_kept(runtime: TableRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(computation: computation_pb2.Computation) -> Leaf:
        raise ModuleNotFoundError("No module named 'framework'")

    monkeypatch.setattr(runtime, "load", load)
    with pytest.raises(CarrierError) as caught:
        leaf_runtimes.load_leaf(leaf(lambda x: x, SCALAR, SCALAR).to_proto())
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
