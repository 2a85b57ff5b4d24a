"""Functions leave the process in carriers that others can load, and of what comes in only what is allowed gets in."""

import gc
import hashlib
import inspect

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from google.protobuf import any_pb2

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import PROCESS, carrier_of
from fedstack.computations.leaves.portability import check_received, leaves_of, portable
from fedstack.errors import CarrierError
from fedstack.leaves import Destination
from fedstack.proto.carriers_pb2 import PickledPython, PythonHandle, PythonReference
from fedstack.testing.computation_builder import (
    Expression,
    as_expression,
    at_clients,
    block,
    data,
    function,
    intrinsic,
    literal,
    struct,
)

INT = fl.TensorType(np.int32)
OPEN = CarrierPolicy(modules=["*"], python_code=True)


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


def local_to_this_test(offset=1):
    @fedstack.python_computation([np.int32], np.int32)
    def shifted(x):
        return np.int32(x + offset)

    return shifted


def everywhere(leaf) -> Expression:
    """Returns a computation with a leaf wherever there can be one."""
    called = function(lambda x: leaf(x, x), INT)
    mapped = function(lambda v: intrinsic("federated_map", called, v), at_clients(INT))
    total = function(
        lambda v: intrinsic("federated_aggregate", v, literal(np.int32(0), np.int32), leaf, leaf, called),
        at_clients(INT),
    )
    picked = function(lambda x: struct(leaf(x, x), other=struct(leaf))["other"][0](x, x), INT)
    return function(
        lambda v, x: struct(mapped(v), total(v), picked(x), block([("local", leaf(x, x))], leaf(x, x))),
        at_clients(INT),
        INT,
    )


LEAVES = 8  # of `everywhere`


def carriers_in(computation):
    return [carrier_of(leaf).removeprefix("fedstack.v1.") for leaf in leaves_of(computation)]


def contents_in(computation, message):
    return [message.FromString(leaf.data.content.value) for leaf in leaves_of(computation)]


def test_leaves_are_found_wherever_they_are():
    assert carriers_in(everywhere(as_expression(add)).proto) == ["PythonHandle"] * LEAVES


def test_a_function_of_a_module_travels_by_reference_wherever_it_is_in_a_computation():
    computation = everywhere(as_expression(add)).proto
    before = computation.SerializeToString(deterministic=True)
    travelling = portable(computation, Destination(takes_code=False))
    assert carriers_in(travelling) == ["PythonReference"] * LEAVES
    (reference,) = {r.SerializeToString(): r for r in contents_in(travelling, PythonReference)}.values()
    assert (reference.module, reference.qualname) == (__name__, "add")
    assert reference.digest == hashlib.sha256(inspect.getsource(inspect.unwrap(add)).encode()).digest()
    assert computation.SerializeToString(deterministic=True) == before
    for leaf in leaves_of(travelling):
        leaf.data.content.Clear()
    for leaf in leaves_of(computation):
        leaf.data.content.Clear()
    assert travelling == computation  # nothing else has changed


def test_a_function_that_is_local_travels_by_value_where_that_is_allowed():
    leaf = local_to_this_test()
    travelling = portable(leaf.to_proto(), Destination(takes_code=True))
    (pickled,) = contents_in(travelling, PickledPython)
    assert carriers_in(travelling) == ["PickledPython"]
    assert pickled.name.endswith("shifted")
    with pytest.raises(CarrierError) as caught:
        portable(leaf.to_proto(), Destination(takes_code=False))
    assert "define it at the top level of a module that is installed on the worker" in str(caught.value)
    assert "or start the worker with --allow-python-code" in str(caught.value)


def test_a_function_that_cannot_be_pickled_is_refused_with_the_reason():
    generator = (x for x in range(3))
    leaf = local_to_this_test(generator)
    with pytest.raises(CarrierError, match="Pickling .*generator"):
        portable(leaf.to_proto(), Destination(takes_code=True))


def test_what_has_no_handles_is_left_as_it_is():
    for computation in (
        function(lambda x: struct(x, literal(np.int32(1), np.int32)), INT).proto,
        portable(as_expression(add).proto, Destination(takes_code=False)),
        data("mnist", fl.SequenceType(np.int32)).proto,
    ):
        assert portable(computation, Destination(takes_code=False)) is computation


def handle(process=PROCESS, serial=1 << 40):
    content = any_pb2.Any()
    content.Pack(PythonHandle(process=process, serial=serial, name="lost"))
    type_spec = fl.FunctionType(np.int32, np.int32).to_proto()
    return computation_pb2.Computation(type=type_spec, data=computation_pb2.Data(content=content))


@pytest.mark.parametrize("process", [PROCESS, "another"], ids=["this", "another"])
def test_a_handle_to_what_is_not_here_does_not_travel(process):
    with pytest.raises(CarrierError, match="Expected a function of this process, found 'lost'"):
        portable(handle(process), Destination(takes_code=True))


def test_a_function_that_is_garbage_does_not_travel():
    leaf = local_to_this_test()
    computation = computation_pb2.Computation.FromString(leaf.to_proto().SerializeToString())
    del leaf
    gc.collect()
    with pytest.raises(CarrierError, match="which belongs to another process or has been garbage-collected"):
        portable(computation, Destination(takes_code=True))


def reference(module="package.module", qualname="function"):
    content = any_pb2.Any()
    content.Pack(PythonReference(module=module, qualname=qualname))
    return of_content(content)


def pickled():
    content = any_pb2.Any()
    content.Pack(PickledPython(function=b"never loaded", name="evil", python_version="3.11"))
    return of_content(content)


def of_content(content):
    type_spec = fl.FunctionType(np.int32, np.int32)
    return Expression(
        type_spec, computation_pb2.Computation(type=type_spec.to_proto(), data=computation_pb2.Data(content=content))
    )


def inside(leaf):
    """Hides a leaf in a lambda in a struct in a block."""
    hidden = function(lambda x: struct(x, function(lambda y: leaf(y), INT))[1](x), INT)
    return function(lambda x: block([("local", hidden(x))], x), INT).proto


@pytest.mark.parametrize(
    ("allowed", "module", "gets_in"),
    [
        (["package"], "package.module", True),
        (["package"], "package", True),
        (["package.module"], "package.module", True),
        (["other", "package"], "package.module", True),
        (["*"], "package.module", True),
        (["package.module"], "package", False),
        (["pack"], "package.module", False),
        (["package.modul"], "package.module", False),
        (["other"], "package.module", False),
        ([], "package.module", False),
        (["package"], "", False),
    ],
)
def test_a_reference_gets_in_if_its_module_is_allowed(allowed, module, gets_in):
    check_received(inside(reference(module)), CarrierPolicy(modules=allowed, python_code=True))  # it could anyway
    policy = CarrierPolicy(modules=allowed)
    if gets_in:
        check_received(inside(reference(module)), policy)
        return
    with pytest.raises(CarrierError) as caught:
        check_received(inside(reference(module)), policy)
    shown = ", ".join(allowed) or "none"
    assert f"Expected a function of an allowed module ({shown}), found {module}:function" in str(caught.value)
    assert f"--allow-module {module}" in str(caught.value)


def test_code_gets_in_if_that_is_allowed():
    check_received(inside(pickled()), CarrierPolicy(python_code=True))
    with pytest.raises(CarrierError, match="Expected a Python function by reference, found 'evil' by value") as caught:
        check_received(inside(pickled()), CarrierPolicy(modules=["*"]))
    assert "--allow-python-code" in str(caught.value)


def test_a_handle_of_another_process_does_not_get_in():
    check_received(handle(PROCESS), CarrierPolicy())
    with pytest.raises(CarrierError, match="found a handle to 'lost' in another process; define the function"):
        check_received(handle("another"), OPEN)


def test_a_tensorflow_graph_does_not_get_in():
    graph = any_pb2.Any(type_url="type.googleapis.com/tensorflow.GraphDef", value=b"graph")
    type_spec = fl.FunctionType(np.int32, np.int32)
    leaf = computation_pb2.Computation(
        type=type_spec.to_proto(), tensorflow=computation_pb2.TensorFlow(graph_def=graph)
    )
    with pytest.raises(CarrierError, match="found tensorflow.GraphDef; decorate the function with fedstack.python"):
        check_received(inside(Expression(type_spec, leaf)), OPEN)


def test_what_is_no_function_gets_in_for_the_data_executor_to_look_at():
    check_received(data("mnist", fl.SequenceType(np.int32)).proto, CarrierPolicy())
    check_received(literal(np.int32(1), np.int32).proto, CarrierPolicy())


@pytest.mark.parametrize("message", [PythonHandle, PythonReference, PickledPython])
@pytest.mark.parametrize("url", ["type.googleapis.com/", "", "/"])
def test_a_carrier_that_is_garbage_does_not_get_in(message, url):
    content = any_pb2.Any(type_url=url + message.DESCRIPTOR.full_name, value=b"\x0a\xff")
    with pytest.raises(CarrierError, match=f"The content is not a valid {message.DESCRIPTOR.full_name}"):
        check_received(inside(of_content(content)), CarrierPolicy())


@pytest.mark.parametrize("message", [PythonHandle, PythonReference, PickledPython])
def test_a_carrier_in_the_place_of_another_kind_of_leaf_is_held_to_the_same_rules(message):
    content = any_pb2.Any()
    content.Pack(message())
    leaf = computation_pb2.Computation(
        type=fl.FunctionType(np.int32, np.int32).to_proto(), xla=computation_pb2.Xla(hlo_module=content)
    )
    with pytest.raises(CarrierError):
        check_received(leaf, CarrierPolicy())
