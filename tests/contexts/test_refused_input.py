"""Bad input: a typed error that says what, where and what to do; and the context works on afterwards."""

import asyncio
import threading
import traceback

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from federated_language.proto import computation_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import (
    CardinalityError,
    CarrierError,
    FedstackError,
    InvalidComputationError,
    LeafError,
    ResourceLimitError,
    TypeMismatchError,
    UnsupportedIntrinsicError,
)

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)
FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * 2


@fl.federated_computation(INTS)
def total(xs):
    return fl.federated_sum(fl.federated_map(double, xs))


@fl.federated_computation(INTS, INTS)
def pair(left, right):
    return fl.federated_sum(left), fl.federated_sum(right)


@pytest.fixture(autouse=True)
def context():
    made = fedstack.create_sync_local_execution_context()
    with fedstack.use_context(made):
        yield made
        assert total([1, 2, 3]) == 12  # whatever went wrong, the context works on
    made.close()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1, 2.5], r"Expected int32, found float 2\.5; at arg\[client 1\]"),
        ([1, np.int64(2)], r"Expected int32, found int64 2; at arg\[client 1\]; convert it with"),
        ([1, 2**40], r"Expected int32, from -2147483648 to 2147483647, found int 1099511627776; at arg\[client 1\]"),
        ([1, [2]], r"Expected shape \[\] of int32, found shape \[1\]; at arg\[client 1\]"),
        ([1, None], r"Expected int32, found None; at arg\[client 1\]"),
        ([1, True], r"Expected int32, found bool True; at arg\[client 1\]"),
        ("abc", r"Expected a list or tuple with one value per client, .* found str 'abc'"),
        (b"ab", r"found bytes b'ab'"),
        (np.array([[1, 2]], np.int32), r"Expected shape \[\] of int32, found shape \[2\]; at arg\[client 0\]"),
        (np.array([1, 2]), r"Expected int32, found int64 1; at arg\[client 0\]; convert it with"),
        (np.ma.array([1, 2]), r"found an array int64\[2\]; at arg; choose a value for masked elements"),
        ({"a": 1}, r"found dict .* pass list\(mapping\.values\(\)\)"),
        (iter([1]), r"found list_iterator"),
        (7, r"found int 7; at arg; put the clients' values into a list"),
    ],
)
def test_a_client_argument_that_does_not_fit_is_refused_with_its_place(argument, message):
    with pytest.raises(TypeMismatchError, match=message):
        total(argument)


@pytest.mark.parametrize("aggregate", [fl.federated_sum, fl.federated_mean, fl.federated_min])
def test_an_aggregate_of_no_clients_for_which_there_is_no_memory_names_its_type(aggregate):
    huge = fl.TensorType(np.float32, [10**15])
    run = fl.federated_computation(lambda x: aggregate(x), fl.FederatedType(huge, fl.CLIENTS))
    with pytest.raises(
        ResourceLimitError,
        match=r"float32\[1000000000000000\] requires 4,000,000,000,000,000 bytes, but less is available",
    ):
        run([])


def test_conflicting_numbers_of_clients_name_both_arguments():
    with pytest.raises(CardinalityError, match=r"found 1 at arg\.left and 2 at arg\.right"):
        pair([1], [1, 2])


def test_a_wrong_name_is_refused_by_the_names_that_are_missing_and_extra():
    struct = fl.to_type({"weights": np.float32, "bias": np.float32})

    @fl.federated_computation(fl.FederatedType(struct, fl.CLIENTS))
    def mean(xs):
        return fl.federated_mean(xs)

    with pytest.raises(TypeMismatchError, match=r"found no 'bias' and the extra 'biass'; at arg\[client 1\]"):
        mean([{"weights": 1.0, "bias": 1.0}, {"weights": 1.0, "biass": 1.0}])


def test_a_wrong_number_of_arguments_is_refused():
    with pytest.raises(TypeError, match="Missing argument"):
        pair([1], other=[2])


def fails_at_37(x):
    if x == 37:
        raise ZeroDivisionError("of mine")
    return x


def test_a_function_that_raises_is_shown_with_its_client_its_line_and_its_cause():
    leaf = fedstack.python_computation([np.int32], np.int32)(fails_at_37)

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_map(leaf, xs)

    with pytest.raises(LeafError, match="'fails_at_37'.*ZeroDivisionError: of mine; at client 37") as caught:
        run(list(range(100)))
    assert caught.value.client_index == 37
    assert caught.value.computation_name == "fails_at_37"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert 'raise ZeroDivisionError("of mine")' in str(caught.value)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len([frame for frame in frames if "fedstack/executors" in frame.filename]) <= 1


def fails_for_key_2(value, key):
    if key == 2:
        raise ZeroDivisionError("of mine")
    return "text" if key == 3 else value


@pytest.mark.parametrize("select", [fl.federated_select, fl.federated_secure_select])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([[0, 1], [2, 4]], LeafError, r"ZeroDivisionError: of mine; for the key 2 of federated_(secure_)?select\n"),
        ([[0, 1], [3, 4]], TypeMismatchError, r"found str 'text'; .*; for the key 3 of federated_(secure_)?select$"),
    ],
)
def test_an_error_in_a_function_that_selects_names_the_key(select, keys, error, message):
    leaf = fedstack.python_computation([np.int32, np.int32], np.int32)(fails_for_key_2)

    @fl.federated_computation(fl.FederatedType((np.int32, [2]), fl.CLIENTS))
    def run(keys):
        return select(keys, fl.federated_value(4, fl.SERVER), fl.federated_value(7, fl.SERVER), leaf)

    with pytest.raises(error, match=message):
        run(np.array(keys, np.int32).tolist())


def in_place(x):
    x += 1
    return x


def no_result(x):
    x * 2


def wrong_type(x):
    return "text"


def wrong_width(x):
    return np.int64(1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (no_result, TypeMismatchError, r"found None; at the result of 'no_result' at client 0; .*return statement"),
        (wrong_type, TypeMismatchError, r"Expected int32, found str 'text'; at the result of 'wrong_type' at client 0"),
        (wrong_width, TypeMismatchError, r"Expected int32, found int64 1; at the result of 'wrong_width' at client 0"),
    ],
)
def test_a_function_that_returns_something_else_is_named(function, error, message):
    leaf = fedstack.python_computation([np.int32], np.int32)(function)

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_map(leaf, xs)

    with pytest.raises(error, match=message):
        run([1, 2])


def test_a_function_that_updates_its_argument_in_place_is_told_to_copy():
    vector = fl.TensorType(np.float32, [2])
    leaf = fedstack.python_computation([vector], vector)(in_place)
    mine = np.ones(2, np.float32)
    with pytest.raises(LeafError, match=r"read-only.*x = x\.copy\(\)"):
        leaf(mine)
    assert mine.tolist() == [1.0, 1.0]


async def test_a_function_that_never_returns_can_be_cancelled_and_the_context_works_on():
    begun, release = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hang(x):
        begun.set()
        release.wait(LIMIT)
        return x

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_sum(fl.federated_map(hang, xs))

    context = fedstack.create_async_local_execution_context(max_concurrent_clients=1)
    try:
        with fedstack.use_context(context):
            task = asyncio.ensure_future(run([1]))
            assert await asyncio.to_thread(begun.wait, LIMIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, LIMIT)
            assert await asyncio.wait_for(total([1, 2]), LIMIT) == 6
    finally:
        release.set()
        context.close()


def from_proto(proto):
    return fl.framework.ConcreteComputation.from_proto(proto)


def test_an_unknown_intrinsic_is_refused_by_name():
    proto = computation_pb2.Computation()
    proto.CopyFrom(total.to_proto())
    data = proto.SerializeToString().replace(b"federated_sum", b"federated_sun")
    with pytest.raises(UnsupportedIntrinsicError, match="found 'federated_sun'; use one of federated_aggregate"):
        from_proto(computation_pb2.Computation.FromString(data))([1])


def test_an_unbound_reference_is_refused_by_name():
    block = fl.framework.Lambda("x", fl.to_type(np.int32), fl.framework.Reference("y", fl.to_type(np.int32)))
    with pytest.raises(InvalidComputationError, match="found the unbound name 'y'"):
        fl.framework.ConcreteComputation.from_building_block(block)(1)


def test_a_function_from_a_carrier_that_nobody_knows_is_refused_by_the_name_of_its_content():
    data = double.to_proto().SerializeToString().replace(b"fedstack.v1.PythonHandle", b"fedstack.v1.PythonHandel")
    with pytest.raises(CarrierError, match=r"found fedstack\.v1\.PythonHandel; .*fedstack\.leaf_runtimes"):
        from_proto(computation_pb2.Computation.FromString(data))(1)


@pytest.mark.parametrize("kind", ["data", "xla", "tensorflow"])
def test_a_block_without_content_is_an_invalid_computation(kind):
    proto = computation_pb2.Computation(type=double.type_signature.to_proto())
    getattr(proto, kind).SetInParent()
    with pytest.raises(InvalidComputationError, match=f"found an empty {kind}"):
        from_proto(proto)(1)


@pytest.mark.parametrize("type_spec", [None, computation_pb2.FunctionType(parameter=INTS.to_proto())])
def test_an_intrinsic_without_its_whole_type_is_refused_by_name(type_spec):
    untyped = computation_pb2.Type() if type_spec is None else computation_pb2.Type(function=type_spec)
    intrinsic = computation_pb2.Computation(type=untyped, intrinsic=computation_pb2.Intrinsic(uri="federated_sum"))
    body = computation_pb2.Computation(
        type=fl.FederatedType(np.int32, fl.SERVER).to_proto(),
        call=computation_pb2.Call(
            function=intrinsic,
            argument=computation_pb2.Computation(type=INTS.to_proto(), reference=computation_pb2.Reference(name="x")),
        ),
    )
    called = computation_pb2.Computation(
        type=total.type_signature.to_proto(), **{"lambda": computation_pb2.Lambda(parameter_name="x", result=body)}
    )
    with pytest.raises(InvalidComputationError, match="The type of the intrinsic 'federated_sum' is invalid: "):
        from_proto(called)([1])


def test_an_intrinsic_that_lies_about_its_type_is_refused():
    function_type = fl.FunctionType(INTS, fl.FederatedType(np.float32, fl.SERVER))
    intrinsic = computation_pb2.Computation(
        type=function_type.to_proto(), intrinsic=computation_pb2.Intrinsic(uri="federated_sum")
    )
    with pytest.raises(TypeMismatchError, match="Expected federated_sum to be declared as returning int32@SERVER"):
        from_proto(intrinsic)([1])


def test_a_computation_that_returns_a_function_or_takes_one_gets_an_error_that_says_what_to_do():
    @fl.federated_computation(np.int32)
    def gives(x):
        return double

    @fl.federated_computation(fl.FunctionType(np.int32, np.int32), np.int32)
    def takes(function, x):
        return function(x)

    with pytest.raises(InvalidComputationError, match="a result of type .*call the function in the"):
        gives(1)
    with pytest.raises(InvalidComputationError, match="parameter contains no function, .*call the computation in"):
        takes(double, 1)


def test_a_chain_of_a_thousand_maps_works():
    @fl.federated_computation(INTS)
    def chain(xs):
        for _ in range(1000):
            xs = fl.federated_map(fedstack_identity, xs)
        return fl.federated_sum(xs)

    assert chain([1, 2, 3]) == 6


@fedstack.python_computation([np.int32], np.int32)
def fedstack_identity(x):
    return x


def called_by_another(inner):
    @fl.federated_computation(INTS)
    def outer(xs):
        return inner(xs)

    return outer


def test_computations_nested_beyond_the_limit_of_protobuf_are_the_languages_own_decode_error():
    computation = total
    with pytest.raises(DecodeError):
        for _ in range(60):
            computation = called_by_another(computation)


@pytest.mark.parametrize("levels", [40])
def test_functions_that_unfold_exponentially_meet_a_limit(levels):
    integer = fl.to_type(np.int32)
    reference, called = fl.framework.Reference, fl.framework.Call
    locals_ = [("f0", fl.framework.Lambda("x", integer, reference("x", integer)))]
    function = fl.FunctionType(np.int32, np.int32)
    for level in range(1, levels):
        before = reference(f"f{level - 1}", function)
        body = called(before, called(before, reference("x", integer)))
        locals_.append((f"f{level}", fl.framework.Lambda("x", integer, body)))
    result = called(reference(f"f{levels - 1}", function), reference("y", integer))
    block = fl.framework.Lambda("y", integer, fl.framework.Block(locals_, result))
    few = WorkScope(max_steps=20_000)  # of a million, which take a while
    with few.entered(), pytest.raises(FedstackError, match="at most 20000 steps"):
        fl.framework.ConcreteComputation.from_building_block(block)(1)


VALID = [total.to_proto().SerializeToString(), pair.to_proto().SerializeToString()]


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_mutated_computations_give_a_typed_error_or_a_result(data):
    valid = bytearray(data.draw(st.sampled_from(VALID)))
    for _ in range(data.draw(st.integers(1, 4))):
        valid[data.draw(st.integers(0, len(valid) - 1))] = data.draw(st.integers(0, 255))
    run_bytes(bytes(valid))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_give_a_typed_error_or_a_result(content):
    run_bytes(content)


def run_bytes(content):
    try:
        proto = computation_pb2.Computation.FromString(content)
    except DecodeError:
        return

    async def run():
        executor = fedstack.local_executor_factory().create_executor({fl.CLIENTS: 2})
        try:
            value = await executor.create_value(proto)
            parameter = getattr(value.type_signature, "parameter", None)
            argument = None
            if parameter is not None:
                given_ = ([1, 2], [3, 4]) if isinstance(parameter, fl.StructType) else [1, 2]
                argument = await executor.create_value(given_, parameter)
            if isinstance(value.type_signature, fl.FunctionType):
                value = await executor.create_call(value, argument)
            await value.compute()
        except FedstackError as error:
            assert str(error)
        finally:
            executor.close()

    asyncio.run(asyncio.wait_for(run(), LIMIT))
