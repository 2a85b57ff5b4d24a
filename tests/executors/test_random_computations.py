"""Random computations mean the same in every stack as in the reference interpreter."""

import asyncio

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from random_computations import (
    DEFAULT_CLIENTS,
    FAILING,
    INT,
    LEAVES,
    SEQUENCE,
    SLOW_IS_FINE,
    add,
    assert_same,
    at_clients,
    at_server,
    bare,
    count_up,
    differs_by_client,
    five,
    keys,
    programs,
    to_float,
    to_int,
    triple,
    without,
)
from reference_interpreter import Clients, Reference
from remote_stacks import in_memory_stub

import fedstack
from fedstack.contexts import ResourceManagingExecutorFactory, SyncExecutionContext
from fedstack.errors import FedstackError
from fedstack.executors import (
    ComposingExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
)


def unplaced():
    return SequenceExecutor(LeafExecutor())


def federating(clients):
    return ReferenceResolvingExecutor(FederatingExecutor(unplaced(), clients))


def composing(clients):
    counts = [clients // 3, clients - clients // 3]
    children = [FederatingExecutor(unplaced(), count) for count in counts]
    return ReferenceResolvingExecutor(ComposingExecutor(unplaced(), children, counts))


async def part_by_part(make, computation, value, clients):
    """Drives an executor through the verbs, and computes the members of a struct one by one, the last first."""
    executor = make(clients)
    signature = computation.type_signature
    function = await executor.create_value(computation)
    called = await executor.create_call(function, await executor.create_value(value, signature.parameter))
    if not isinstance(signature.result, fl.StructType):
        found = await called.compute()
    else:
        members = [
            await executor.create_selection(called, index) for index in range(len(list(signature.result.items())))
        ]
        found = tuple(reversed([await member.compute() for member in reversed(members)]))
    executor.close()
    return found


@pytest.fixture
def contexts():
    made = [
        fedstack.create_sync_local_execution_context(default_num_clients=DEFAULT_CLIENTS),
        SyncExecutionContext(
            ResourceManagingExecutorFactory(
                lambda cardinalities: composing(cardinalities[fl.CLIENTS]), default_num_clients=DEFAULT_CLIENTS
            )
        ),
    ]
    yield made
    for context in made:
        context.close()


def check(contexts, program):
    computation, value, meaning, clients = program
    note(computation.to_building_block().formatted_representation())
    expected = bare(Reference(LEAVES, clients).run(computation.to_proto(), meaning))
    for context in contexts:
        with fedstack.use_context(context):
            assert_same(bare(computation(value)), expected)
    for make in (federating, composing):
        assert_same(bare(asyncio.run(part_by_part(make, computation, value, clients))), expected)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(program=programs())
def test_a_random_computation_means_the_same_in_every_stack(contexts, program):
    check(contexts, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(20_000), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(program=programs() | programs(fuel=8))
def test_many_random_computations_mean_the_same_in_every_stack(contexts, program):
    check(contexts, program)


@pytest.fixture
def tolerant_contexts():
    policy = fedstack.ClientFailures(min_clients=0)
    options = {"default_num_clients": DEFAULT_CLIENTS, "client_failures": policy}
    stubs = [in_memory_stub() for _ in range(3)]
    made = [
        fedstack.create_sync_local_execution_context(**options),
        fedstack.create_sync_remote_execution_context(stubs, **options),
    ]
    yield made
    for context in made:
        context.close()


@pytest.mark.fedstack_leak_check(False)  # the service lives as long as the tests
@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(program=programs(), data=st.data())
def test_clients_that_do_not_take_part_are_holes_in_a_random_computation(tolerant_contexts, program, data):
    computation, value, meaning, clients = program
    note(computation.to_building_block().formatted_representation())
    parameter = computation.type_signature.parameter
    is_placed = clients and differs_by_client(parameter)
    absent = data.draw(st.sets(st.integers(0, clients - 1))) if is_placed else set()
    expected = bare(Reference(LEAVES, clients, absent).run(computation.to_proto(), meaning))
    argument = without(value, parameter, absent)
    for context in tolerant_contexts:
        with fedstack.use_context(context):
            assert_same(bare(computation(argument)), expected)


def told(context, computation, *arguments):
    """Returns a result, which clients have failed in which phase, and the outcomes; of an error only its class."""
    with fedstack.use_context(context), fedstack.client_outcomes() as outcomes:
        try:
            found = bare(computation(*arguments))
        except FedstackError as error:
            return type(error), [], outcomes
    return found, [(one.client, one.phase) for one in outcomes.of_kind("failed")], outcomes


@fl.federated_computation([fl.FunctionType(INT, INT), INT])
def twice(function, x):
    return function(function(x))


@fl.federated_computation(at_clients(INT), at_server(INT))
def add_to_all(x, y):
    return fl.federated_map(add, (x, fl.federated_broadcast(y)))


def of_int(body):
    return fl.federated_computation(body, INT)


def add_here(k):
    """Returns a function for a map; k, which it captures, is an argument of the computation around it."""
    return of_int(lambda v: add(v, k))


# What the language's front end makes of Python functions: each step takes the clients' and the server's integers and a
# plain one, and gives the clients' and the server's.
STEPS = {
    "map": lambda c, s, k: (fl.federated_map(triple, c), s),
    "apply": lambda c, s, k: (c, fl.federated_map(triple, s)),
    "capture": lambda c, s, k: (fl.federated_map(add_here(k), c), fl.federated_map(add_here(k), s)),
    "capture twice": lambda c, s, k: (fl.federated_map(of_int(lambda v: add_here(add_here(k)(v))(k)), c), s),
    "functional parameter": lambda c, s, k: (fl.federated_map(of_int(lambda v: twice(triple, v)), c), s),
    "captured functional argument": lambda c, s, k: (fl.federated_map(of_int(lambda v: twice(add_here(k), v)), c), s),
    "call": lambda c, s, k: (add_to_all(c, s), s),
    "zip": lambda c, s, k: (fl.federated_map(add, fl.federated_zip((c, c))), s),
    "sum": lambda c, s, k: (c, fl.federated_map(of_int(lambda x: add(x, x)), fl.federated_sum(c))),
    "largest": lambda c, s, k: (c, fl.federated_max(add_to_all(c, s))),
    "smallest": lambda c, s, k: (c, fl.federated_min(c)),
    "mean": lambda c, s, k: (c, fl.federated_map(to_int, fl.federated_mean(fl.federated_map(to_float, c)))),
    "weighted mean": lambda c, s, k: (c, fl.federated_map(to_int, fl.federated_mean(fl.federated_map(to_float, c), c))),
    "aggregate": lambda c, s, k: (c, fl.federated_aggregate(c, 0, add, add, triple)),
    "secure sum": lambda c, s, k: (c, fl.federated_secure_sum(fl.federated_map(triple, c), 1000)),
    "evaluate": lambda c, s, k: (
        fl.federated_map(add, (c, fl.federated_eval(five, fl.CLIENTS))),
        fl.federated_eval(five, fl.SERVER),
    ),
    "value": lambda c, s, k: (c, fl.federated_value(7, fl.SERVER)),
    "sequence": lambda c, s, k: (
        fl.federated_map(of_int(lambda x: fl.sequence_sum(fl.sequence_map(add_here(k), count_up(x)))), c),
        fl.federated_map(of_int(lambda x: fl.sequence_reduce(count_up(x), k, add)), s),
    ),
    "select": lambda c, s, k: (
        fl.federated_map(
            fl.federated_computation(fl.sequence_sum, SEQUENCE),
            fl.federated_select(fl.federated_map(keys, c), fl.federated_value(2, fl.SERVER), s, add),
        ),
        s,
    ),
}


@pytest.mark.long
@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8),
    clients=st.lists(st.integers(0, 999), max_size=9),
    server=st.integers(0, 999),
    plain=st.integers(0, 999),
)
def test_what_the_front_end_makes_means_the_same_in_every_stack(contexts, steps, clients, server, plain):
    @fl.federated_computation(at_clients(INT), at_server(INT), INT)
    def computation(c, s, k):
        for step in steps:
            c, s = STEPS[step](c, s, k)
        return c, s

    meaning = (Clients(map(np.int32, clients)), np.int32(server), np.int32(plain))
    expected = bare(Reference(LEAVES, len(clients)).run(computation.to_proto(), meaning))
    for context in contexts:
        with fedstack.use_context(context):
            assert_same(bare(computation(clients, server, plain)), expected)


@pytest.mark.fedstack_leak_check(False)  # the service lives as long as the tests
@settings(max_examples=examples(200), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    clients=st.lists(st.integers(-9, 9), min_size=1, max_size=9),
    server=st.integers(20, 29),
    failing=st.sets(st.integers(-9, 9), min_size=1, max_size=4),
)
def test_clients_that_fail_are_holes_in_a_random_computation(tolerant_contexts, steps, clients, server, failing):
    @fl.federated_computation(at_clients(INT), at_server(INT), INT)
    def computation(c, s, k):
        c = fl.federated_map(triple, c)  # or few clients would fail
        for step in steps:
            c, s = STEPS[step](c, s, k)
        return c, s, fl.federated_sum(c)

    FAILING.update(failing)
    try:
        found, failed, outcomes = told(tolerant_contexts[0], computation, clients, server, 7)
        elsewhere, failed_there, _ = told(tolerant_contexts[1], computation, clients, server, 7)
        assert failed == failed_there
        if isinstance(found, type):
            assert found is elsewhere, "the server's work has failed"
            return
        assert_same(elsewhere, found)
        event(f"{len(failed)} have failed, in phase {max((phase for _, phase in failed), default=0)} at the latest")
        if all(phase == 0 for _, phase in failed):  # who fails in the first phase has never taken part
            meaning = Clients(map(np.int32, clients)), np.int32(server), np.int32(7)
            reference = Reference(LEAVES, len(clients), {client for client, _ in failed})
            assert_same(found, bare(reference.run(computation.to_proto(), meaning)))
    finally:
        FAILING.clear()
    policy = fedstack.ClientFailures(min_clients=0, replay=outcomes)
    replayed = told(tolerant_contexts[1].with_options(client_failures=policy), computation, clients, server, 7)
    assert_same(replayed[0], found)
