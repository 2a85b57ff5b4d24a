"""Where the order of `federated_aggregate` shows: the one aggregation that does not follow the tree."""

import threading

import numpy as np
import pytest
from stacks import composed, federating, split

from fedstack import python_computation
from fedstack.computations.types.language import Executor
from fedstack.errors import LeafError, TypeMismatchError
from fedstack.testing.computation_builder import at_clients, computation, intrinsic, literal


@python_computation([np.str_, np.str_], np.str_)
def accumulate(total, value):
    return b"(" + total + b"+" + value + b")"


@python_computation([np.str_, np.str_], np.str_)
def merge(left, right):
    return b"[" + left + b"|" + right + b"]"


@python_computation([np.str_], np.str_)
def report(total):
    return b"=" + total


SHOW = computation(
    lambda x: intrinsic("federated_aggregate", x, literal(b"0", np.str_), accumulate, merge, report),
    at_clients(np.str_),
)


async def shown(executor: Executor, clients: int) -> bytes:
    values = await executor.create_value([str(k + 1) for k in range(clients)], at_clients(np.str_))
    called = await executor.create_call(await executor.create_value(SHOW), values)
    result = await called.compute()
    executor.close()
    return result


@pytest.mark.parametrize(
    ("clients", "expected"), [(0, b"=0"), (1, b"=(0+1)"), (2, b"=((0+1)+2)"), (4, b"=((((0+1)+2)+3)+4)")]
)
async def test_one_executor_folds_from_zero_in_client_order_and_never_merges(clients, expected) -> None:
    assert await shown(federating(clients), clients) == expected


async def test_the_size_of_blocks_does_not_change_the_order() -> None:
    clients = 200
    expected = await shown(federating(clients, max_concurrent_clients=1), clients)
    for options in ({}, {"clients_per_thread": 7}, {"clients_per_thread": 64}, {"max_concurrent_clients": 1}):
        assert await shown(federating(clients, **options), clients) == expected


@pytest.mark.parametrize(
    ("clients", "parts", "expected"),
    [
        (0, 2, b"=0"),
        (3, 1, b"=(((0+1)+2)+3)"),
        (3, 2, b"=[(0+1)|((0+2)+3)]"),
        (6, 3, b"=[[(0+1)|((0+2)+3)]|(((0+4)+5)+6)]"),
    ],
)
async def test_children_fold_from_zero_each_and_are_merged_in_their_order(clients, parts, expected) -> None:
    assert sum(split(clients, parts)) == clients
    assert await shown(composed(clients, parts), clients) == expected


async def test_a_child_without_clients_contributes_nothing() -> None:
    assert split(1, 5) == [0, 0, 0, 0, 1]
    assert await shown(composed(1, 5), 1) == b"=(0+1)"


MERGING_THREADS: list[int] = []


@python_computation([np.int32, np.int32], np.int32)
def add_where(left, right):
    MERGING_THREADS.append(threading.get_ident())
    return left + right


async def test_merging_does_not_hold_up_the_loop_of_whoever_asks() -> None:
    MERGING_THREADS.clear()
    count = computation(
        lambda x: intrinsic("federated_aggregate", x, literal(np.int32(0), np.int32), add, add_where, give_back),
        at_clients(np.int32),
    )
    executor = composed(6, 3)
    values = await executor.create_value([1] * 6, at_clients(np.int32))
    called = await executor.create_call(await executor.create_value(count), values)
    assert await called.compute() == 6
    executor.close()
    assert len(MERGING_THREADS) == 2
    assert threading.get_ident() not in MERGING_THREADS


@python_computation([np.int32, np.int32], np.int32)
def add(left, right):
    return left + right


@python_computation([np.int32, np.int32], np.int32)
def accumulate_small(total, value):
    if value > 100:
        raise ValueError("too large")
    return "none" if value > 50 else total + value


@python_computation([np.int32], np.int32)
def give_back(total):
    return total


ADD_SMALL = computation(
    lambda x: intrinsic(
        "federated_aggregate", x, literal(np.int32(0), np.int32), accumulate_small, accumulate_small, give_back
    ),
    at_clients(np.int32),
)


@pytest.mark.parametrize("client", [0, 5, 11])
@pytest.mark.parametrize("children", [0, 1, 3])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (101, LeafError, "'accumulate_small' raised ValueError: too large; at client {}\n"),
        (51, TypeMismatchError, "found str 'none'; at the result of 'accumulate_small' at client {};"),
    ],
)
async def test_a_failing_accumulation_names_the_client(client, children, value, error, text) -> None:
    executor = composed(12, children) if children else federating(12)
    given = [1] * 12
    given[client] = value
    values = await executor.create_value(given, at_clients(np.int32))
    called = await executor.create_call(await executor.create_value(ADD_SMALL), values)
    with pytest.raises(error) as caught:
        await called.compute()
    executor.close()
    assert text.format(client) in str(caught.value)
    assert getattr(caught.value, "client_index", client) == client
