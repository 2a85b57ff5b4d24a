"""How `federated_aggregate` folds: blocks of 8 clients from zero, merged along the tree, wherever clients run."""

import itertools
import threading

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from stacks import composed, federating, split

from fedstack import python_computation
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import ListColumn
from fedstack.errors import LeafError, TypeMismatchError
from fedstack.executors.composing_executor import whole_blocks
from fedstack.executors.folds.aggregate_state import AggregateState
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


def expected(clients: int) -> bytes:
    """Returns the fold of blocks of 8 clients, each from zero, along the tree."""

    def accumulated(block: range) -> bytes:
        total = b"0"
        for client in block:
            total = b"(" + total + b"+" + str(client + 1).encode() + b")"
        return total

    def merged(blocks: list[bytes]) -> bytes:
        if len(blocks) == 1:
            return blocks[0]
        half = 1 << (len(blocks) - 1).bit_length() - 1
        return b"[" + merged(blocks[:half]) + b"|" + merged(blocks[half:]) + b"]"

    blocks = [accumulated(range(start, min(start + 8, clients))) for start in range(0, clients, 8)]
    return b"=" + (merged(blocks) if blocks else b"0")


def test_the_expectation_is_as_it_is_written() -> None:
    assert expected(2) == b"=((0+1)+2)"
    assert expected(9) == b"=[((((((((0+1)+2)+3)+4)+5)+6)+7)+8)|(0+9)]"


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("clients", range(41))
async def test_blocks_of_eight_are_accumulated_and_merged_wherever_their_clients_run(clients, parts) -> None:
    assert await shown(composed(clients, parts), clients) == expected(clients)


@pytest.mark.parametrize("clients", [*range(18), 200])
async def test_one_executor_makes_the_same_blocks_whatever_its_threads(clients) -> None:
    for options in ({}, {"clients_per_thread": 7}, {"clients_per_thread": 64}, {"max_concurrent_clients": 1}):
        assert await shown(federating(clients, **options), clients) == expected(clients)


async def test_a_child_without_clients_contributes_nothing() -> None:
    assert split(1, 5) == [0, 0, 0, 0, 1]
    assert await shown(composed(1, 5), 1) == b"=(0+1)"


@pytest.mark.parametrize(("clients", "parts", "counts"), [(40, 3, [14, 13, 13]), (1000, 3, [328, 336, 336])])
def test_parts_of_many_clients_cut_no_blocks(clients, parts, counts) -> None:
    assert whole_blocks(range(clients), parts) == counts


@hypothesis.given(data=st.data())
def test_blocks_cut_anywhere_and_merged_in_any_order_have_the_same_result(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 20))
    clients = range(first, first + data.draw(st.integers(0, 60)))
    bounds = sorted({clients.start, clients.stop, *data.draw(st.lists(st.integers(clients.start, clients.stop)))})
    whole = state()
    whole.feed(clients.start, [ListColumn(list(clients))])
    total, parts = state(), [range(*pair) for pair in itertools.pairwise(bounds)]
    for part in data.draw(st.permutations(parts)):
        own = state()
        cut = data.draw(st.integers(part.start, part.stop))
        for some in (range(cut, part.stop), range(part.start, cut)):
            own.feed(some.start, [ListColumn(list(some))])
        taken = own.take(range(part.start, cut))
        assert taken is None or cut in (part.start, cut // 8 * 8), "a block stays whole"
        for partials in (taken, own.partials()):
            if partials is not None:
                total.merge(partials)
    assert total.result() == whole.result()


def state() -> AggregateState:
    return AggregateState(
        "0", lambda total, value, client: f"({total}+{client}:{value})", lambda left, right: f"[{left}|{right}]"
    )


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
    executor = composed(24, 3)
    values = await executor.create_value([1] * 24, at_clients(np.int32))
    called = await executor.create_call(await executor.create_value(count), values)
    assert await called.compute() == 24
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
