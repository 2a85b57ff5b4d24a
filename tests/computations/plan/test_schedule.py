"""A schedule has as few client phases as the aggregations allow, and holds only what somebody wants."""

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import PhaseTask, SelectTask, ServerTask
from fedstack.computations.plan.trace import trace
from fedstack.testing.computation_builder import at_clients, at_server, block, computation, intrinsic, reference, struct

INT, FLOAT = fl.TensorType(np.int32), fl.TensorType(np.float32)
CLIENTS, SERVER = at_clients(FLOAT), at_server(FLOAT)


@python_computation([np.float32], np.float32)
def halve(x):
    return x / np.float32(2)


@python_computation([np.float32, np.float32], np.float32)
def add(x, y):
    return x + y


@python_computation([], np.float32)
def one():
    return np.float32(1)


@python_computation([np.float32, np.int32], np.float32)
def pick(x, index):
    return x + np.float32(index)


@python_computation([fl.SequenceType(np.float32)], np.float32)
def total(values):
    return np.float32(sum(values))


def mapped(function, *values):
    value = values[0] if len(values) == 1 else intrinsic("federated_zip_at_clients", struct(*values))
    return intrinsic("federated_map", function, value)


def broadcast(value):
    return intrinsic("federated_broadcast", value, result_type=at_clients(FLOAT, True))


def let(value, body):
    """Names a value, so that all uses of it are one."""
    return block([("shared", value)], body(reference("shared", value.type)))


def cut(body, *types, fuse=True):
    return schedule(trace(computation(body, *types).to_proto()), fuse=fuse)


def phases(plan):
    return [task.phase for task in plan.tasks if isinstance(task, PhaseTask)]


def shape(plan):
    """Says what a schedule is made of: s is server work, S a selection, a phase its steps, folds and held columns."""
    return [
        "s" if isinstance(task, ServerTask)
        else "S" if isinstance(task, SelectTask)
        else (len(task.phase.program.steps), [fold.uri for fold in task.phase.folds], len(task.phase.held))
        for task in plan.tasks
    ]  # fmt: skip


def one_round(clients, server):
    return intrinsic("federated_mean", mapped(add, clients, broadcast(server)))


SEQUENCE = fl.SequenceType(FLOAT)
SEQUENCES = at_clients(SEQUENCE)


@python_computation([fl.SequenceType(np.float32), np.float32], np.float32)
def total_and(values, x):
    return np.float32(sum(values)) + x


def halves(sequences):
    return mapped(computation(lambda s: intrinsic("sequence_map", halve, s), SEQUENCE), sequences)


def halves_and_selves(sequences):
    return mapped(computation(lambda s: struct(intrinsic("sequence_map", halve, s), s), SEQUENCE), sequences)


def two_phases_of(sequences):
    """Reads sequences in a phase, and once more in the next one."""
    totals = intrinsic("federated_sum", mapped(total, sequences))
    return intrinsic("federated_sum", mapped(total_and, sequences, broadcast(totals)))


# How many phases there are.


def test_a_round_of_averaging_is_one_phase_that_holds_nothing():
    assert shape(cut(one_round, CLIENTS, SERVER)) == [(1, ["federated_mean"], 0)]


def test_two_rounds_are_two_phases():
    plan = cut(
        lambda clients, server: let(one_round(clients, server), lambda s: one_round(clients, s)), CLIENTS, SERVER
    )
    assert shape(plan) == [(1, ["federated_mean"], 0)] * 2


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_server_work_between_rounds_is_a_task_of_its_own(rounds):
    def body(clients, server):
        locals_ = [("s", server)]
        for _ in range(rounds):
            updated = intrinsic("federated_apply", halve, one_round(clients, reference("s", SERVER)))
            locals_.append(("s", updated))
        return block(locals_, reference("s", SERVER))

    assert shape(cut(body, CLIENTS, SERVER)) == [(1, ["federated_mean"], 0), "s"] * rounds


def test_1000_chained_maps_are_one_phase_of_1000_steps():
    def body(clients):
        locals_ = [("v0", clients)]
        for index in range(1000):
            locals_.append((f"v{index + 1}", mapped(halve, reference(f"v{index}", CLIENTS))))
        return block(locals_, intrinsic("federated_sum", reference("v1000", CLIENTS)))

    assert shape(cut(body, CLIENTS)) == [(1000, ["federated_sum"], 0)]


def test_all_aggregations_of_one_map_are_folds_of_one_phase():
    def body(clients):
        uris = ["federated_sum", "federated_mean", "federated_min", "federated_max"]
        return let(mapped(halve, clients), lambda v: struct(*(intrinsic(uri, v) for uri in uris)))

    (phase,) = phases(cut(body, CLIENTS))
    assert len(phase.program.steps) == 1
    assert [fold.uri for fold in phase.folds] == ["federated_sum", "federated_mean", "federated_min", "federated_max"]
    assert {fold.results for fold in phase.folds} == {(0,), (1,), (2,), (3,)}
    assert len(set(phase.program.results)) == 1


def test_independent_client_work_is_one_phase():
    plan = cut(lambda a, b: struct(mapped(halve, a), intrinsic("federated_sum", b)), CLIENTS, CLIENTS)
    assert shape(plan) == [(1, ["federated_sum"], 1)]


def test_a_weighted_mean_is_one_fold_of_two_results():
    plan = cut(lambda v, w: intrinsic("federated_weighted_mean", mapped(halve, v), w), CLIENTS, at_clients(INT))
    ((fold,),) = [phase.folds for phase in phases(plan)]
    assert fold.results == (0, 1)
    assert (fold.member, fold.weight) == (FLOAT, INT)


def test_work_at_clients_without_an_argument_is_a_phase():
    assert shape(cut(lambda: intrinsic("federated_eval_at_clients", one))) == [(1, [], 1)]
    assert shape(cut(lambda: intrinsic("federated_sum", intrinsic("federated_eval_at_clients", one)))) == [
        (1, ["federated_sum"], 0)
    ]


def test_an_aggregation_over_an_argument_runs_no_step():
    assert shape(cut(lambda v: intrinsic("federated_sum", v), CLIENTS)) == [(0, ["federated_sum"], 0)]


def test_a_zero_that_is_aggregated_itself_comes_from_a_phase_before():
    def body(clients):
        zero = intrinsic("federated_max", clients)
        wrapped = intrinsic("federated_apply", halve, zero)
        mean = intrinsic(
            "federated_map", add, intrinsic("federated_zip_at_clients", struct(clients, broadcast(wrapped)))
        )
        return intrinsic("federated_sum", mean)

    assert shape(cut(body, CLIENTS)) == [(0, ["federated_max"], 0), "s", (1, ["federated_sum"], 0)]


# What needs no phase.


def test_work_at_the_server_needs_no_phase():
    plan = cut(lambda x: intrinsic("federated_apply", halve, x), SERVER)
    assert shape(plan) == ["s"]


def test_server_work_that_only_the_next_work_reads_is_one_task_with_it():
    plan = cut(lambda x: intrinsic("federated_apply", halve, intrinsic("federated_apply", halve, x)), SERVER)
    assert shape(plan) == ["s"]
    assert len(plan.tasks[0].program.steps) == 2


def test_server_work_that_two_tasks_or_the_caller_read_is_a_task_of_its_own():
    def twice(x):
        half = intrinsic("federated_apply", halve, x)
        return struct(half, intrinsic("federated_apply", halve, half))

    assert shape(cut(twice, SERVER)) == ["s", "s"]


def test_server_work_that_could_begin_earlier_does_not_join_a_chain():
    def both(x, y):
        zipped = intrinsic("federated_zip_at_server", struct(x, intrinsic("federated_sum", y)))
        return intrinsic("federated_apply", add, zipped)

    plan = cut(lambda x, y: both(intrinsic("federated_apply", halve, x), y), SERVER, CLIENTS)
    assert shape(plan).count("s") == 2


def test_zips_broadcasts_and_placed_values_are_no_tasks():
    def body(clients, server, plain):
        everywhere = intrinsic("federated_value_at_clients", plain, result_type=at_clients(FLOAT, True))
        zipped = intrinsic("federated_zip_at_clients", struct(clients, broadcast(server), everywhere))
        return struct(zipped, intrinsic("federated_value_at_server", plain))

    assert shape(cut(body, CLIENTS, SERVER, FLOAT)) == []


def test_a_map_over_a_value_that_is_the_same_for_all_runs_once_at_the_server():
    plan = cut(
        lambda x: intrinsic("federated_map_all_equal", halve, broadcast(x), result_type=at_clients(FLOAT, True)), SERVER
    )
    assert shape(plan) == ["s"]


def test_what_nobody_needs_is_not_scheduled():
    plan = cut(
        lambda clients, server: struct(mapped(halve, clients), intrinsic("federated_apply", halve, server))[1],
        CLIENTS,
        SERVER,
    )
    assert shape(plan) == ["s"]


# What is held.


def test_a_map_that_is_folded_and_returned_is_held_and_runs_once():
    plan = cut(lambda v: let(mapped(halve, v), lambda m: struct(m, intrinsic("federated_sum", m))), CLIENTS)
    assert shape(plan) == [(1, ["federated_sum"], 1)]


def test_of_chained_maps_only_the_last_is_held():
    assert shape(cut(lambda v: mapped(halve, mapped(halve, mapped(halve, v))), CLIENTS)) == [(3, [], 1)]


def test_a_map_that_a_later_phase_needs_is_held():
    def body(clients):
        def rest(m):
            return intrinsic("federated_max", mapped(add, m, broadcast(intrinsic("federated_sum", m))))

        return let(mapped(halve, clients), rest)

    assert shape(cut(body, CLIENTS)) == [(1, ["federated_sum"], 1), (1, ["federated_max"], 0)]


def test_a_map_that_is_zipped_inside_its_phase_is_not_held():
    def body(clients):
        return let(mapped(halve, clients), lambda m: intrinsic("federated_sum", mapped(add, m, clients)))

    assert shape(cut(body, CLIENTS)) == [(2, ["federated_sum"], 0)]


def test_a_map_that_is_returned_inside_a_zip_is_held():
    zipped = cut(lambda v: intrinsic("federated_zip_at_clients", struct(mapped(halve, v), v)), CLIENTS)
    assert shape(zipped) == [(1, [], 1)]


def test_a_zip_of_what_a_phase_makes_can_be_folded_and_returned():
    def body(clients):
        zipped = intrinsic("federated_zip_at_clients", struct(mapped(halve, clients), clients))
        return let(zipped, lambda z: struct(z, intrinsic("federated_sum", z)))

    assert shape(cut(body, CLIENTS)) == [(1, ["federated_sum"], 1)]


# Selections.


KEYS = at_clients((np.int32, [2]))
LIMIT = at_server(INT)


def selected(keys, limit, server):
    return intrinsic("federated_select", keys, limit, server, pick)


def test_a_selection_is_a_task_and_what_follows_is_a_phase():
    plan = cut(lambda k, n, s: intrinsic("federated_sum", mapped(total, selected(k, n, s))), KEYS, LIMIT, SERVER)
    assert shape(plan) == ["S", (1, ["federated_sum"], 0)]


def test_keys_that_clients_compute_are_held_for_the_selection():
    @python_computation([np.int32], (np.int32, [2]))
    def keys_of(x):
        return np.array([x, x], np.int32)

    plan = cut(lambda c, n, s: mapped(total, selected(mapped(keys_of, c), n, s)), at_clients(INT), LIMIT, SERVER)
    assert shape(plan) == [(1, [], 1), "S", (1, [], 1)]


def test_a_selection_from_what_clients_contributed_waits_for_it():
    plan = cut(lambda k, n, c: selected(k, n, intrinsic("federated_sum", c)), KEYS, LIMIT, CLIENTS)
    assert shape(plan) == [(0, ["federated_sum"], 0), "S"]


# Order and parts.


def test_tasks_read_only_what_tasks_before_them_wrote(fedstack_context):
    def body(clients, server):
        def second(s):
            return let(
                one_round(clients, s), lambda t: struct(t, one_round(clients, t), mapped(add, clients, broadcast(t)))
            )

        return let(intrinsic("federated_apply", halve, one_round(clients, server)), second)

    for fuse in (True, False):
        plan = cut(body, CLIENTS, SERVER, fuse=fuse)
        written = {0, *(slot for slot, _ in plan.constants)}
        for task in plan.tasks:
            assert task.reads <= written
            written.update(task.targets if isinstance(task, PhaseTask) else [task.target])
    assert computation(body, CLIENTS, SERVER)([1.0, 3.0], 4.0) == (5.0, 7.0, [6.0, 8.0])


def test_unfused_every_operation_is_a_task_of_its_own_that_keeps_its_result():
    def body(clients, server):
        return intrinsic("federated_sum", mapped(halve, mapped(add, clients, broadcast(server))))

    assert shape(cut(body, CLIENTS, SERVER)) == [(2, ["federated_sum"], 0)]
    assert shape(cut(body, CLIENTS, SERVER, fuse=False)) == [(1, [], 1), (1, [], 1), (0, ["federated_sum"], 0)]


def test_a_schedule_is_made_once_and_kept_with_its_function():
    function = trace(computation(one_round, CLIENTS, SERVER).to_proto())
    assert schedule(function) is schedule(function)
    assert schedule(function, fuse=False) is schedule(function, fuse=False)
    assert schedule(function) is not schedule(function, fuse=False)


@python_computation([fl.SequenceType(np.float32)], fl.SequenceType(np.float32))
def selves(values):
    return values


# Sequences that are mapped are made as somebody iterates over them, so that none is held for another phase.

FIRST = computation(lambda pair: pair[0], fl.StructType([SEQUENCE, SEQUENCE]))


@pytest.mark.parametrize(
    ("made", "maps"),
    [
        (halves, 1),
        (lambda sequences: let(halves(sequences), halves), 2),
        (lambda sequences: let(halves_and_selves(sequences), lambda pairs: mapped(FIRST, pairs)), 1),
    ],
)
def test_a_mapped_sequence_is_made_anew_by_each_phase_that_reads_it(made, maps):
    plan = cut(lambda sequences: let(made(sequences), two_phases_of), SEQUENCES)
    assert shape(plan) == [(maps + 1, ["federated_sum"], 0)] * 2


def test_what_a_mapped_sequence_is_made_of_is_held_for_the_next_phase():
    plan = cut(lambda sequences: let(halves(mapped(selves, sequences)), two_phases_of), SEQUENCES)
    assert shape(plan) == [(3, ["federated_sum"], 1), (2, ["federated_sum"], 0)]


def test_a_mapped_sequence_that_is_a_result_is_held():
    plan = cut(lambda sequences: let(halves(sequences), lambda s: struct(two_phases_of(s), s)), SEQUENCES)
    assert shape(plan) == [(2, ["federated_sum"], 1), (1, ["federated_sum"], 0)]


def test_values_that_other_work_makes_of_mapped_sequences_are_held():
    def body(sequences):
        totals = mapped(total, halves(sequences))
        return let(totals, lambda v: one_round(v, intrinsic("federated_sum", v)))

    assert shape(cut(body, SEQUENCES)) == [(2, ["federated_sum"], 1), (1, ["federated_mean"], 0)]
