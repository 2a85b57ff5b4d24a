"""For whom work is done: one object, which tasks, threads and what is called inside inherit."""

import asyncio
import contextlib
import threading

import attrs
import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves import carrier_policy
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import (
    SystemScope,
    WorkKind,
    WorkScope,
    current_policy,
    current_scope,
    set_scope,
)
from fedstack.errors import FedstackError
from fedstack.executors.concurrency.leaf_threads import LeafThreads

LIMIT = 20.0


def test_a_process_works_for_itself_unless_somebody_says_otherwise():
    scope = current_scope()
    assert (scope.owner, scope.policy, scope.leaves, scope.progress, scope.losses) == ("", None, None, None, None)
    assert not scope.is_for_others
    assert current_policy() is carrier_policy.policy


def test_a_scope_holds_for_a_block_and_the_one_before_it_afterwards():
    before = current_scope()
    with WorkScope(caller="one").entered(), pytest.raises(ValueError, match="ended"):
        with current_scope().replace(origin="there").entered() as inner:
            assert (current_scope(), inner.caller, inner.origin) == (inner, "one", "there")
            raise ValueError("ended")
    assert current_scope() is before


def test_a_scope_cannot_be_changed_behind_the_back_of_those_who_have_it():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        current_scope().caller = "another"  # type: ignore[misc]


def test_a_scope_that_is_made_of_another_one_has_all_that_is_not_said_to_differ():
    marks = {field.name: object() for field in attrs.fields(WorkScope)}
    scope = WorkScope(**marks)
    for made, differs in (
        (scope.replace(), set()),
        (scope.replace(cores=None, span=None), {"cores", "span"}),
        (scope.under(CarrierPolicy()), {"policy", "leaves"}),
        (
            scope.replace(systems={}).of_invocation(contextlib.nullcontext, None, None),
            {"kind", "environment", "progress", "losses", "span", "systems"},
        ),
    ):
        assert {name for name, mark in marks.items() if getattr(made, name) is not mark} == differs
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            made.caller = "another"
    with pytest.raises(AssertionError, match="found corse"):
        scope.replace(corse=1)


@attrs.frozen
class _Passing(SystemScope):
    depth: int = 0

    def of_invocation(self):
        return _Passing(self.depth + 1)


@attrs.frozen
class _Staying(SystemScope):
    mark: str


def test_each_system_has_its_own_in_a_scope_and_says_what_invocations_inside_have_of_it():
    scope = WorkScope(kind=WorkKind.CLOSURE).adding(_Staying("one"), _Passing())
    assert (scope.of(_Staying), scope.of(_Passing), WorkScope().of(_Staying)) == (_Staying("one"), _Passing(), None)
    assert scope.adding(_Staying("two")).of(_Staying) == _Staying("two")
    assert scope.of(_Staying) == _Staying("one")
    inside = scope.of_invocation(contextlib.nullcontext, None, None)
    assert (inside.of(_Staying), inside.of(_Passing)) == (None, _Passing(1))
    assert (scope.is_contained, inside.is_contained) == (True, False)


def test_work_with_a_policy_is_for_others_and_that_policy_is_in_force():
    policy = CarrierPolicy(modules=["numpy"])
    with WorkScope(policy=policy).entered() as scope:
        assert scope.is_for_others
        assert current_policy() is policy


def test_callers_that_cannot_be_told_apart_take_turns_by_where_they_come_from():
    assert WorkScope(caller="token:1", origin="session").owner == "token:1"
    assert WorkScope(origin="session").owner == "session"


async def test_a_task_keeps_its_scope_to_itself_and_hands_it_to_what_it_starts():
    async def inner() -> str:
        await asyncio.sleep(0)
        return current_scope().caller

    async def call(caller: str) -> str:
        set_scope(WorkScope(caller=caller))
        return await asyncio.ensure_future(inner())

    assert await asyncio.gather(call("one"), call("two")) == ["one", "two"]
    assert current_scope().caller == ""


def test_work_on_a_thread_of_a_pool_has_the_scope_and_the_environment_of_who_handed_it_in():
    entered: list[int] = []

    @contextlib.contextmanager
    def environment():
        entered.append(threading.get_ident())
        yield

    threads = LeafThreads(1)
    with WorkScope(caller="one", environment=environment).entered():
        future = threads.submit(lambda: (current_scope().caller, threading.get_ident()))
    assert future.result(LIMIT) == ("one", entered[0])
    threads.close()


def test_an_invocation_counts_its_own_clients_and_goes_on_under_the_rules_of_who_called():
    seen: list[WorkScope] = []
    policy = CarrierPolicy()

    @fedstack.python_computation(np.int32, np.int32)
    def look(x):
        seen.append(current_scope())
        return x

    class Counter:
        def __getattr__(self, name: str):
            raise AssertionError(f"{name} counts for another invocation")

    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        with WorkScope(caller="one", policy=policy, max_steps=100, progress=Counter()).entered() as scope:
            assert look(1) == 1
            assert current_scope() is scope
    (found,) = seen
    assert (found.caller, found.policy, found.max_steps, found.progress) == ("one", policy, 100, None)
    assert found.losses is not None
    assert found.environment is not contextlib.nullcontext


def test_whoever_allows_few_steps_has_larger_computations_refused():
    @fl.federated_computation(np.int32)
    def many(x):
        for _ in range(50):
            x = negated(x)
        return x

    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        with WorkScope(max_steps=20).entered(), pytest.raises(FedstackError, match="at most 20 steps"):
            many(1)


@fedstack.python_computation(np.int32, np.int32)
def negated(x):
    return -x
