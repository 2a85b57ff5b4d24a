"""Structs that are streamed travel leaf by leaf: so many messages, none larger than a leaf."""

from collections import Counter

import federated_language as fl
import numpy as np
import pytest
from federated_language.common_libs.structure import Struct

import fedstack
from fedstack.errors import LeafError

INT, FLOAT = fl.TensorType(np.int32), fl.TensorType(np.float32)
VECTOR = fl.TensorType(np.float32, [1000])
FLAT = fl.StructType([("a", VECTOR), ("b", VECTOR), ("c", VECTOR)])
NESTED = fl.StructType([("x", [("y", VECTOR), ("z", [VECTOR, VECTOR])]), ("w", VECTOR)])
EMPTY = fl.StructType([("x", []), ("y", INT)])
MESSAGE = 4000 + 500  # the bytes of one vector, and of what says what it is
CLIENTS = 3


def payload(type_spec, number=0):
    if isinstance(type_spec, fl.StructType):
        members = [(name, payload(member, number + i)) for i, (name, member) in enumerate(type_spec.items())]
        return dict(members) if members and members[0][0] else tuple(value for _, value in members)
    if isinstance(type_spec, fl.TensorType):
        return np.full(type_spec.shape, number, type_spec.dtype)[()]
    if isinstance(type_spec, fl.SequenceType):
        return [payload(type_spec.element, number + i) for i in range(2)]
    if type_spec.placement is fl.CLIENTS and not type_spec.all_equal:
        return [payload(type_spec.member, number + 100 * client) for client in range(CLIENTS)]
    return payload(type_spec.member, number)


def bare(value):
    if isinstance(value, Struct):
        return tuple(map(bare, value))
    if isinstance(value, dict):
        return tuple(map(bare, value.values()))
    if isinstance(value, (list, tuple)):
        return type(value)(map(bare, value))
    return np.asarray(value).tolist()


def at_clients(member, all_equal=False):
    return fl.FederatedType(member, fl.CLIENTS, all_equal)


def at_server(member):
    return fl.FederatedType(member, fl.SERVER)


# How many leaves, structs put together, and federated values zipped there are.
TYPES = {
    "flat": (FLAT, 3, 1, 0),
    "nested": (NESTED, 4, 3, 0),
    "with an empty struct": (EMPTY, 2, 1, 0),
    "at clients": (at_clients(FLAT), 3, 1, 1),
    "nested, at clients": (at_clients(NESTED), 4, 3, 3),
    "the same at all clients": (at_clients(FLAT, True), 3, 1, 1),
    "nested, the same at all clients": (at_clients(NESTED, True), 4, 3, 3),
    "at the server": (at_server(FLAT), 3, 1, 1),
    "nested, at the server": (at_server(NESTED), 4, 3, 3),
    "of federated values": (fl.StructType([("a", at_clients(FLAT)), ("b", at_server(INT))]), 4, 2, 1),
    "of sequences": (fl.StructType([fl.SequenceType(INT), INT]), 2, 1, 0),
    "one tensor": (VECTOR, 1, 0, 0),
    "a sequence of structs": (fl.SequenceType(FLAT), 1, 0, 0),
    "an empty struct": (fl.StructType([]), 1, 0, 0),
}


@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
@pytest.mark.parametrize("name", TYPES)
async def test_a_streamed_value_comes_back_as_it_went(make_remote, name, extensions):
    type_spec, *_ = TYPES[name]
    executor = make_remote(CLIENTS, extensions=extensions, stream_structs=True)
    value = await executor.create_value(payload(type_spec), type_spec)
    assert bare(await value.compute()) == bare(payload(type_spec))


@pytest.mark.parametrize("name", TYPES)
async def test_a_plain_peer_gets_a_message_per_leaf_and_per_struct(make_remote, connection, name):
    type_spec, leaves, structs, zips = TYPES[name]
    executor = make_remote(CLIENTS, extensions=False)
    value = await executor.create_value_stream_structs(payload(type_spec), type_spec)
    calls = Counter(connection.methods)
    assert calls == Counter(
        GetExecutor=1, CreateValue=leaves + zips, CreateStruct=structs, CreateCall=zips
    )  # a function that zips is a value, too
    assert bare(await value.compute()) == bare(payload(type_spec))
    assert connection.methods.count("Compute") == 1


@pytest.mark.parametrize("name", TYPES)
async def test_a_plain_peer_sends_a_message_per_leaf(make_remote, connection, name):
    type_spec, leaves, structs, zips = TYPES[name]
    executor = make_remote(CLIENTS, extensions=False, stream_structs=True)
    value = await executor.create_value(payload(type_spec), type_spec)
    before = len(connection.sent)
    assert bare(await value.compute()) == bare(payload(type_spec))
    calls = Counter(connection.methods[before:])
    assert calls["Compute"] == leaves
    # Each member is selected, or mapped out of a federated value by a function and a call.
    parts = leaves - 1 + structs if structs else 0
    mapped = calls["CreateCall"]
    assert calls["CreateValue"] == mapped
    assert calls["CreateSelection"] + mapped == parts
    assert bool(mapped) == bool(zips)


@pytest.mark.parametrize("name", ["flat", "nested"])
@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
async def test_no_message_is_larger_than_a_leaf(make_remote, connection, name, extensions):
    type_spec, *_ = TYPES[name]
    executor = make_remote(CLIENTS, extensions=extensions, stream_structs=True)
    value = await executor.create_value(payload(type_spec), type_spec)
    await value.compute()
    back = [size for _, sizes in connection.received for size in sizes]
    assert max(back) < MESSAGE
    if not extensions:  # ours put small values into one message with what needs them
        assert max(size for call in connection.sent for size in call.sizes) < MESSAGE


async def test_without_streaming_a_struct_is_one_message_each_way(make_remote, connection):
    executor = make_remote(CLIENTS, extensions=False)
    value = await executor.create_value(payload(NESTED), NESTED)
    assert bare(await value.compute()) == bare(payload(NESTED))
    assert Counter(connection.methods) == Counter(GetExecutor=1, CreateValue=1, Compute=1)


@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
async def test_nothing_is_left_at_the_peer_but_the_value(make_remote, service, eventually, extensions):
    executor = make_remote(CLIENTS, extensions=extensions, stream_structs=True, dispose_batch_size=1)
    value = await executor.create_value(payload(at_clients(NESTED)), at_clients(NESTED))
    assert bare(await value.compute()) == bare(payload(at_clients(NESTED)))
    await eventually(lambda: service.status().values == 1)
    assert bare(await value.compute()) == bare(payload(at_clients(NESTED)))


@fedstack.python_computation([np.int32], fl.StructType([("good", INT), ("bad", INT)]))
def half_broken(x):
    raise ValueError("no luck with " + str(x))


@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
async def test_an_error_in_one_leaf_ends_the_transfer(make_remote, service, eventually, extensions):
    executor = make_remote(CLIENTS, extensions=extensions, stream_structs=True, dispose_batch_size=1)
    function = await executor.create_value(half_broken)
    value = await executor.create_call(function, await executor.create_value(7, INT))
    for _ in range(2):
        with pytest.raises(LeafError, match="no luck with 7"):
            await value.compute()
    # The function, its argument and what it gave; the members have been let go of.
    await eventually(lambda: service.status().values <= 3)


async def test_columns_of_structs_are_streamed_as_columns(make_remote, connection):
    pair = at_clients(fl.StructType([("a", INT), ("b", FLOAT)]))
    executor = make_remote(CLIENTS, stream_structs=True)
    value = await executor.create_value(payload(pair), pair)
    assert bare(await value.compute()) == bare(payload(pair))
    sent = {
        creation.id: creation.value.value.WhichOneof("kind")
        for call in connection.of("Evaluate")
        for creation in call.request.creation
        if creation.HasField("value")
    }
    assert list(sent.values()) == ["column", "column"]
