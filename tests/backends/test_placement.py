"""Which worker begins with which clients."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fedstack.backends.elastic.placement import placed


def test_workers_keep_the_clients_whose_inputs_they_have() -> None:
    assert placed([2, 2, 2], [[range(4, 6)], [range(2)], [range(2, 4)]]) == [1, 2, 0]


def test_the_largest_share_decides_and_others_take_what_is_left() -> None:
    kept = [[range(3)], [range(1, 4)], [], [range(5, 9)]]
    assert placed([3, 2, 2, 2], kept) == [0, 1, 3, 2]
    assert placed([3, 2, 2, 2], [[]] * 4) == [0, 1, 2, 3]


def test_ranges_without_clients_are_nobodys() -> None:
    assert placed([2, 0, 1], [[], [], [range(2)]]) == [2, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)))), max_size=6))
def test_each_worker_has_one_range_and_no_other_would_bring_more_to_both(workers) -> None:
    counts = [count for count, _ in workers]
    kept = [[range(min(pair), max(pair)) for pair in pairs] for _, pairs in workers]
    chosen = placed(counts, kept)
    assert sorted(chosen) == list(range(len(workers)))
    bounds = [range(start, stop) for start, stop in itertools.pairwise(itertools.accumulate(counts, initial=0))]

    def share(index: int, worker: int) -> int:
        return sum(client in clients for clients in kept[worker] for client in bounds[index])

    for (index, worker), (other_index, other) in itertools.permutations(enumerate(chosen), 2):
        assert share(index, other) <= max(share(index, worker), share(other_index, other))
