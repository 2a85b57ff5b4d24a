"""Caches let go of what has been used longest ago, and never have more bytes than they may."""

import gc
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import fedstack
from fedstack.computations.leaves import leaf_runtimes
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.portability import portable
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.plan.plan import PlanCache
from fedstack.foundations.caches import BoundedCache
from fedstack.leaves import Destination
from fedstack.testing.computation_builder import computation, literal


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.booleans()), max_size=40))
def test_a_cache_keeps_what_was_used_last_within_its_bounds(steps):
    cache = BoundedCache(4, 100)
    model = {}  # in the order of use
    for key, size, is_put in steps:
        if is_put:
            cache.put(key, f"{key} of {size}", size)
            model.pop(key, None)
            model[key] = size
            while len(model) > 4 or sum(model.values()) > 100:
                del model[next(iter(model))]
        elif key in model:
            assert cache.get(key) == f"{key} of {model[key]}"
            model[key] = model.pop(key)
        else:
            assert cache.get(key) is None
        assert (len(cache), cache.bytes) == (len(model), sum(model.values()))


def test_what_alone_is_too_large_is_kept_until_something_else_comes():
    cache = BoundedCache(4, 100)
    cache.put("a", 1, 10)
    cache.put("b", 2, 1000)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == (None, 2, 1000)
    cache.put("c", 3, 10)
    assert (cache.get("b"), cache.get("c"), cache.bytes) == (None, 3, 10)


def test_plans_of_large_computations_are_fewer():
    plans = PlanCache(max_bytes=3_000_000)
    made = []
    for number in range(5):
        large = literal(np.full(250_000, number, np.float32), np.float32, [250_000])
        made.append(weakref.ref(plans.plan(computation(lambda large=large: large).to_proto())))
    gc.collect()
    assert [function() is not None for function in made] == [False, False, False, True, True]


def test_leaves_that_bring_much_with_them_are_fewer(monkeypatch):
    monkeypatch.setattr(leaf_runtimes, "_MAX_LEAF_BYTES", 3_000_000)
    leaves = leaf_runtimes.LoadedLeaves()
    sent = []

    def adding(captured):
        return fedstack.python_computation(np.float32, np.float32)(lambda x: x + captured[0])

    for number in range(5):
        leaf = adding(np.full(250_000, number, np.float32))
        sent.append(portable(leaf.to_proto(), Destination(takes_code=True)))
    with WorkScope(policy=CarrierPolicy(python_code=True)).entered():
        for computation in sent:
            leaves.prepare(computation)
        assert [leaves.find(computation) is not None for computation in sent] == [False, False, False, True, True]
        assert leaves.load(sent[0]).call(np.float32(1)) == 1
