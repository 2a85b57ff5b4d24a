"""The search for units that end their process: it names those that do, and no other, in few runs."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.membership.search import Culprit, CulpritSearch, Ended

KILLED = Ended(-9)
CRASHED = Ended(-11)


def run(search: CulpritSearch, answer: Callable[[range], Ended | None]) -> tuple[range | None, list[range]]:
    """Returns what a search has found, and what it has run."""
    ran = list[range]()
    while search.next is not None:
        ran.append(search.next)
        search.answer(answer(search.next))
    return (None if search.found is None else search.found.units), ran


@st.composite
def units(draw: st.DrawFn) -> range:
    start = draw(st.integers(0, 50))
    return range(start, start + draw(st.integers(1, 300)))


def few(some: range) -> int:
    return math.ceil(math.log2(len(some))) + 2


@given(units(), st.data())
def test_one_of_those_that_end_a_worker_alone_is_named_and_quickly(some: range, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.sampled_from(some), min_size=1, max_size=2))
    found, ran = run(CulpritSearch(some, sees=False), lambda units: Ended() if culprits & set(units) else None)
    assert found == range(min(culprits), min(culprits) + 1)
    assert len(ran) <= few(some)


@given(units(), st.data())
def test_what_a_child_says_that_it_is_at_is_confirmed(some: range, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.sampled_from(some), min_size=1, max_size=2))
    first = data.draw(st.lists(st.integers(0, 400), max_size=4))

    def answer(units: range) -> Ended | None:
        at = min(culprits & set(units), default=None)
        return None if at is None else Ended(-11, range(at, at + 1))

    found, ran = run(CulpritSearch(some, first, sees=True), answer)
    assert found is not None
    assert len(found) == 1
    assert found.start in culprits
    assert len(ran) <= 3


@given(units(), st.booleans(), st.data())
def test_those_that_end_a_process_only_together_are_named_together_where_that_is_known(
    some: range, one_by_one: bool, data: st.DataObject
) -> None:
    pair = data.draw(st.sets(st.sampled_from(some), min_size=min(2, len(some)), max_size=2))
    last = max(pair)

    def answer(units: range) -> Ended | None:
        if not pair <= set(units):
            return None
        return Ended(-11, range(last, last + 1) if one_by_one else None)

    found, ran = run(CulpritSearch(some, sees=True), answer)
    assert found == range(min(pair), last + 1)
    assert len(ran) <= 2 * few(some)
    if len(pair) == 2:
        assert run(CulpritSearch(some, sees=False), answer)[0] is None


@given(units(), st.booleans(), st.integers())
def test_whatever_the_answers_a_search_ends_and_only_what_has_ended_a_process_is_blamed(
    some: range, sees: bool, seed: int
) -> None:
    draw, ended = random.Random(seed), list[range]()

    def answer(units: range) -> Ended | None:
        if draw.random() < 0.5:
            return None
        ended.append(units)
        return Ended(-11, units[draw.randrange(len(units)) :][:1] if sees and units and draw.random() < 0.8 else None)

    found, ran = run(CulpritSearch(some, sees=sees), answer)
    assert set(ended) <= set(ran)
    if found is not None:
        assert set(found) <= set(some)
        assert any(set(found) <= set(units) for units in ended)
        assert sees or found in ended


@given(units(), st.booleans(), st.integers())
def test_who_was_killed_is_never_blamed(some: range, sees: bool, seed: int) -> None:
    draw = random.Random(seed)
    assert run(CulpritSearch(some, sees=sees), lambda _: KILLED if draw.random() < 0.7 else None)[0] is None


@given(units(), st.booleans(), st.integers(), st.data())
def test_runs_that_are_killed_hide_nobody(some: range, sees: bool, seed: int, data: st.DataObject) -> None:
    culprit = data.draw(st.sampled_from(some))
    killed, draw = 0, random.Random(seed)

    def answer(units: range) -> Ended | None:
        nonlocal killed
        if killed < 2 and draw.random() < 0.5:
            killed += 1
            return KILLED
        killed = 0
        return Ended(3, range(culprit, culprit + 1) if sees else None) if culprit in units else None

    assert run(CulpritSearch(some, sees=sees), answer)[0] == range(culprit, culprit + 1)


def test_a_search_whose_runs_are_killed_again_and_again_finds_nobody() -> None:
    assert run(CulpritSearch(range(9), sees=True), lambda _: KILLED) == (None, [range(9)] * 3)


def test_what_ends_a_worker_without_any_of_them_is_none_of_them() -> None:
    assert run(CulpritSearch(range(10, 31), sees=False), lambda _: Ended()) == (None, [range(10, 10)])


def test_what_ends_a_process_before_it_has_begun_with_any_is_found() -> None:
    search = CulpritSearch(range(10, 31), sees=True)
    assert run(search, lambda _: Ended(5, range(0))) == (range(0), [range(10, 31)])


def test_those_suspected_most_are_run_first() -> None:
    def answer(units: range) -> Ended | None:
        return Ended(-11, range(13, 14)) if 13 in units else None

    assert run(CulpritSearch(range(10, 31), [13, 99], sees=True), answer)[1] == [range(13, 14)]
    ran = run(CulpritSearch(range(10, 31), [15, 18], sees=True), answer)[1]
    assert ran == [range(15, 19), range(10, 31), range(13, 14)]


def test_one_after_another_that_ends_a_process_only_with_others_is_found() -> None:
    def answer(units: range) -> Ended | None:
        at = 12 if 12 in units and len(units) > 1 else 20
        return CRASHED if units == range(20, 21) else Ended(-11, range(at, at + 1)) if at in units else None

    found, ran = run(CulpritSearch(range(10, 31), sees=True), answer)
    assert (found, ran) == (range(20, 21), [range(10, 31), range(12, 13), range(13, 31), range(20, 21)])


@pytest.mark.parametrize("sees", [False, True])
async def test_a_search_is_driven_and_says_how_many_processes_it_has_ended(sees: bool) -> None:
    last = Ended(3, range(13, 14) if sees else None, "why")

    async def answer(units: range) -> Ended | None:
        return last if 13 in units else None

    search = CulpritSearch(range(12, 16), sees=sees)
    assert await search.drive(answer) == search.found == Culprit(range(13, 14), last, processes=2)
    assert "found: Culprit" in repr(search)
