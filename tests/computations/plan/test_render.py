"""Plans written back as computations of the language."""

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.plan.render import render
from fedstack.computations.plan.trace import trace


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * 2


INTS = fl.FederatedType(np.int32, fl.CLIENTS)


def inner(function, *types):
    return fl.federated_computation(function, *types)


@fl.federated_computation(INTS, np.int32)
def map_capture(xs, k):
    return fl.federated_map(inner(lambda x: add(x, k), np.int32), xs)


@fl.federated_computation(INTS, np.int32)
def aggregate_captures(xs, k):
    accumulate = inner(lambda a, x: add(add(a, x), k), np.int32, np.int32)
    merge = inner(lambda a, b: add(a, b), np.int32, np.int32)
    report = inner(lambda a: add(a, k), np.int32)
    return fl.federated_aggregate(xs, np.int32(0), accumulate, merge, report)


@fl.federated_computation(INTS, np.int32)
def eval_captures(xs, k):
    return fl.federated_sum(xs), fl.federated_eval(inner(lambda: double(k)), fl.CLIENTS)


@fl.federated_computation(INTS, np.int32)
def server_eval_captures(xs, k):
    return fl.federated_eval(inner(lambda: double(k)), fl.SERVER), fl.federated_map(double, fl.federated_sum(xs))


@fl.federated_computation(INTS, np.int32)
def struct_result(xs, k):
    return fl.federated_zip((xs, fl.federated_map(double, xs))), k


KEYS = fl.FederatedType(fl.TensorType(np.int32, [2]), fl.CLIENTS)


@fl.federated_computation(KEYS, np.int32)
def select_captures(keys, k):
    value = fl.federated_value(10, fl.SERVER)
    limit = fl.federated_value(9, fl.SERVER)
    return fl.federated_select(keys, limit, value, inner(lambda v, key: add(add(v, key), k), np.int32, np.int32))


@fl.federated_computation(fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS))
def sequences(xs):
    return fl.federated_sum(fl.sequence_sum(fl.sequence_map(double, xs)))


OPEN = fl.TensorType(np.float32, [None])
FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)


@fedstack.python_computation([OPEN, np.float32], OPEN)
def append(a, x):
    return np.append(a, x)


@fedstack.python_computation([OPEN, OPEN], OPEN)
def join(a, b):
    return np.concatenate([a, b])


@fedstack.python_computation([OPEN], np.float32)
def total(a):
    return a.sum()


def collected(xs, report):
    zero = np.zeros(0, np.float32)  # its type has no elements, the accumulator's any number of them
    return fl.federated_aggregate(xs, zero, append, join, report)


@fl.federated_computation(FLOATS)
def collect(xs):
    return collected(xs, inner(lambda a: total(a), OPEN))


@fl.federated_computation(FLOATS, np.float32)
def collect_captures(xs, k):
    return collected(xs, inner(lambda a: total(append(a, k)), OPEN))


CASES = [
    (map_capture, ([1, 2], 3)),
    (aggregate_captures, ([1, 2], 3)),
    (eval_captures, ([1, 2], 3)),
    (server_eval_captures, ([1, 2], 3)),
    (struct_result, ([1, 2], 3)),
    (select_captures, ([[1, 2], [3, 3]], 5)),
    (collect, ([1.0, 2.0],)),
    (collect_captures, ([1.0, 2.0], 3.0)),
    (sequences, ([[1, 2], [3]],)),
]


@pytest.mark.parametrize(("computation", "arguments"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_rendered_plan_computes_the_same(computation, arguments):
    rendered = fl.framework.ConcreteComputation.from_proto(render(trace(computation.to_proto())))
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert rendered(*arguments) == computation(*arguments)


@pytest.mark.parametrize(("computation", "arguments"), CASES[:-1], ids=lambda case: getattr(case, "__name__", ""))
def test_functions_in_federated_intrinsics_of_a_rendered_plan_capture_nothing(computation, arguments):
    function = trace(render(trace(computation.to_proto())))
    captures = [c for node in function.nodes for f in getattr(node, "functions", ()) for c in f.captures]
    assert captures == []


def test_a_rendered_plan_can_be_printed_and_parsed_by_the_language():
    proto = render(trace(map_capture.to_proto()))
    block = fl.framework.ComputationBuildingBlock.from_proto(proto)
    assert "federated_zip_at_clients" in block.compact_representation()


def test_constants_of_a_rendered_plan_can_be_parsed_by_the_language():
    @fl.federated_computation()
    def constants():
        return fl.federated_value([np.array([[1, 2]], np.int16), "text", np.zeros(0, np.float32)], fl.SERVER)

    rendered = fl.framework.ConcreteComputation.from_proto(render(trace(constants.to_proto())))
    assert "federated_value_at_server" in rendered.to_building_block().compact_representation()
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        matrix, text, nothing = rendered()
    assert (matrix.dtype, matrix.tolist(), text, nothing.shape) == (np.int16, [[1, 2]], b"text", (0,))


def test_a_plan_of_many_operations_stays_flat():
    @fl.federated_computation(INTS)
    def chain(xs):
        for _ in range(300):
            xs = fl.federated_map(double, xs)
        return xs

    proto = render(trace(chain.to_proto()))
    assert type(proto).FromString(proto.SerializeToString()) == proto
