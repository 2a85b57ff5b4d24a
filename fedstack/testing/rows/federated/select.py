"""Conformance rows about the selection of slices of a server value by the keys of clients."""

import re
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import ConcreteComputation, SequenceType, StructType, TensorType
from fedstack.testing.computation_builder import (
    at_clients,
    at_server,
    computation,
    function,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner

_URIS = ("federated_select", "federated_secure_select")
_TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)
_TABLE_TYPE = TensorType(np.float32, [10, 2])


@python_computation([_TABLE_TYPE, np.int32], (np.float32, [2]))
def _row(table: Any, key: Any) -> Any:
    return table[key]


def _selecting(uri: str, keys: int | None, max_key: int = 9) -> ConcreteComputation:
    return computation(
        lambda k, table: intrinsic(
            uri, k, intrinsic("federated_value_at_server", literal(np.int32(max_key), np.int32)), table, _row
        ),
        at_clients(TensorType(np.int32, [keys])),
        at_server(_TABLE_TYPE),
    )


def _keys(*keys: int) -> Any:
    return np.array(keys, np.int32)


@promise_of_both(intrinsics=_URIS)
async def select_keeps_the_order_of_the_keys(runner: Runner) -> None:
    """Each client receives the slices of its keys, in the order of the keys. Keys may be repeated."""
    for uri in _URIS:
        found = await runner.run(_selecting(uri, 3), [_keys(3, 1, 2), _keys(9, 9, 0)], _TABLE)
        expect_same(found, [[_TABLE[3], _TABLE[1], _TABLE[2]], [_TABLE[9], _TABLE[9], _TABLE[0]]], uri)


@promise_of_both(intrinsics=_URIS)
async def select_allows_no_keys(runner: Runner) -> None:
    """A client without keys receives an empty sequence, for a fixed and for an open number of keys."""
    for uri in _URIS:
        found = await runner.run(_selecting(uri, 0), [_keys(), _keys()], _TABLE)
        expect_same(found, [list[Any](), list[Any]()])
    found = await runner.run(_selecting("federated_select", None), [_keys(), _keys(4, 2)], _TABLE)
    expect_same(found, [list[Any](), [_TABLE[4], _TABLE[2]]])


@promise_of_both(intrinsics=_URIS, tag="errors")
async def a_key_out_of_range_names_the_client(runner: Runner) -> None:
    """A key outside the range from 0 to `max_key` raises an error that names the key, the bound and the client."""
    for uri in _URIS:
        for wrong in (-1, 6):
            keys = [_keys(0, 5), _keys(1, 2), _keys(3, wrong)]
            await expect_error(
                runner.run(_selecting(uri, 2, max_key=5), keys, _TABLE), ValueError, uri, str(wrong), "5", "client 2"
            )


@promise_of_both(intrinsics=_URIS, tag="errors")
async def a_negative_max_key_is_nobodys_fault(runner: Runner) -> None:
    """A negative `max_key` raises an error with the intrinsic and the bound, but no client, even without clients."""
    for uri in _URIS:
        for keys in ([], [_keys(0, 1)], [_keys(-1, 0), _keys(1, 2)]):
            error = await expect_error(
                runner.run(_selecting(uri, 2, max_key=-1), keys, _TABLE), ValueError, uri, "found -1"
            )
            expect(not re.search(r"client \d", str(error)), "an error message without a client", str(error))


@promise_of_both(intrinsics=["federated_select"], needs=["same process", "one attempt"], tag="timing")
async def select_computes_each_distinct_key_once(runner: Runner) -> None:
    """The slice of a key is computed once, regardless of the number of clients and repetitions that select it."""
    calls: list[int] = []

    @python_computation([np.int32, np.int32], np.int32)
    def pick(value: Any, key: Any) -> Any:
        calls.append(int(key))
        return value + key

    selecting = computation(
        lambda k, s: intrinsic(
            "federated_select", k, intrinsic("federated_value_at_server", literal(np.int32(9), np.int32)), s, pick
        ),
        at_clients((np.int32, [3])),
        at_server(np.int32),
    )
    found = await runner.run(selecting, [_keys(3, 1, 3), _keys(1, 7, 3)], 100)
    expect_same(found, [[np.int32(100 + k) for k in keys] for keys in ((3, 1, 3), (1, 7, 3))])
    expect(sorted(calls) == [1, 3, 7], "one call for each of the keys 1, 3 and 7", calls)


@promise_of_both(intrinsics=["federated_select", "federated_map", "sequence_map", "sequence_reduce"])
async def selected_slices_are_sequences_at_clients(runner: Runner) -> None:
    """Selected slices can be mapped and reduced on clients. Slices may be structs and depend on captured values."""
    pair = StructType([("key", np.int32), ("value", np.int32)])
    made = computation(
        lambda k, s, shift: intrinsic(
            "federated_map",
            function(
                lambda slices: intrinsic(
                    "sequence_sum",
                    intrinsic(
                        "sequence_map", function(lambda p: intrinsic("generic_plus", p["value"], shift), pair), slices
                    ),
                ),
                SequenceType(pair),
            ),
            intrinsic(
                "federated_select",
                k,
                intrinsic("federated_value_at_server", literal(np.int32(9), np.int32)),
                s,
                function(lambda v, key: struct(key=key, value=intrinsic("generic_plus", v, shift)), np.int32, np.int32),
            ),
        ),
        at_clients((np.int32, [2])),
        at_server(np.int32),
        np.int32,
    )
    expect_same(await runner.run(made, [_keys(1, 2), _keys(3, 3)], 10, 1), [np.int32(24), np.int32(24)])
