"""What `explain` tells of computations and contexts is what happens when they run."""

from html.parser import HTMLParser

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from federated_language.proto import computation_pb2
from hypothesis import given, settings
from random_computations import SLOW_IS_FINE, programs

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import ClosedError, InvalidComputationError, InvalidValueError

MODEL = fl.TensorType(np.float32, [10])
EXAMPLES = fl.SequenceType(fl.StructWithPythonType([("x", (np.float32, [None, 10])), ("y", (np.int32, [None]))], dict))


@fedstack.python_computation([MODEL, EXAMPLES], (MODEL, np.float32))
def client_update(model, examples):
    return model, np.float32(sum(len(batch["y"]) for batch in examples))


@fedstack.python_computation([MODEL, MODEL], MODEL)
def apply_update(model, update):
    return model + update


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(EXAMPLES, fl.CLIENTS))
def train_round(model, data):
    update = fl.federated_map(client_update, (fl.federated_broadcast(model), data))
    mean = fl.federated_mean(update[0], weight=update[1])
    return fl.federated_map(apply_update, (model, mean)), update[1]


def test_a_round_of_training_is_told_step_by_step():
    assert str(fedstack.explain(train_round, num_clients=100)).splitlines()[1:] == [
        "1. on each of 100 clients",
        "   receives     arg.model                float32[10]                         40 B",
        "   has          arg.data                 <x=float32[?,10],y=int32[?]>*",
        "   runs         client_update",
        "   contributes  federated_weighted_mean  <value=float32[10],weight=float32>  44 B",
        "   keeps        for the result           float32                             4 B",
        "   total        3.906 KiB to the clients, 4.688 KiB back",
        "2. on the server",
        "   runs         apply_update",
    ]


def test_without_a_number_of_clients_there_are_no_totals():
    text = str(fedstack.explain(train_round))
    assert "1. on each client\n" in text
    assert "   total" not in text


@fedstack.python_computation([np.int32, np.int32], np.int32)
def minus(x, y):
    if x == 1:
        raise ValueError("in a later phase")
    return x - y


@fedstack.python_computation([np.int32, np.int32], np.int32)
def plus_key(x, key):
    return x + key


def test_phases_have_the_numbers_of_failures():
    keys_type = fl.FederatedType(fl.TensorType(np.int32, [1]), fl.CLIENTS)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS), keys_type)
    def three_phases(values, keys):
        total = fl.federated_sum(values)
        rest = fl.federated_map(minus, (values, fl.federated_broadcast(total)))
        return fl.federated_select(keys, fl.federated_value(np.int32(3), fl.SERVER), total, plus_key), rest

    explanation = fedstack.explain(three_phases)
    titles = [line.partition(". ")[2] for line in str(explanation).splitlines() if line[0].isdigit()]
    assert titles == [f"on each client (phase {phase})" for phase in range(3)]
    phases = {step.runs[0]: step.phase for step in explanation.steps if step.runs}
    with fedstack.create_sync_local_execution_context(client_failures=fedstack.ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            three_phases([1, 10, 5], [[0], [7], [3]])
    failed = {(one.client, one.phase) for one in outcomes.of_kind("failed")}
    assert failed == {(0, phases["minus"]), (1, phases["plus_key"])}


def test_a_notebook_gets_a_table_with_the_same_rows():
    class Cells(HTMLParser):
        def __init__(self):
            super().__init__()
            self.rows, self.texts = 0, []

        def handle_starttag(self, tag, attrs):
            self.rows += tag == "tr"

        def handle_data(self, data):
            self.texts.append(data)

    explanation = fedstack.explain(train_round, num_clients=100)
    cells = Cells()
    cells.feed(explanation._repr_html_())
    assert cells.rows == 1 + 7 - 1 + 1  # a header, and one row for each line that is no title of a step
    assert "<x=float32[?,10],y=int32[?]>*" in cells.texts
    assert explanation.signature in cells.texts


def test_the_names_of_many_functions_are_in_lines_that_can_be_read():
    @fl.federated_computation(fl.FederatedType(MODEL, fl.CLIENTS))
    def chained(models):
        for number in range(60):
            models = fl.federated_map(named(f"function_{number}"), models)
        return fl.federated_mean(models)

    explanation = fedstack.explain(chained, 1)
    lines = str(explanation).splitlines()
    assert lines[1] == "1. on 1 client"
    assert max(map(len, lines)) <= 100
    first = next(index for index, line in enumerate(lines) if "runs" in line)
    found = " ".join(lines[first:]).replace(",", "").split()
    assert [name for name in found if name.startswith("function_")] == [f"function_{number}" for number in range(60)]
    assert lines[first + 1].startswith(" " * 16 + "function_")
    assert "white-space: normal; max-width" in explanation._repr_html_()


def named(name):
    def passed(model):
        return model

    passed.__name__ = passed.__qualname__ = name
    return fedstack.python_computation([MODEL], MODEL)(passed)


def test_the_bytes_are_those_that_a_sizing_factory_counts():
    clients = 7
    factory = fedstack.sizing_executor_factory()
    batch = {"x": np.ones((2, 10), np.float32), "y": np.ones(2, np.int32)}
    with SyncExecutionContext(factory) as context, fedstack.use_context(context):
        train_round(np.zeros(10, np.float32), [[batch]] * clients)
    step = fedstack.explain(train_round, clients).steps[0]
    assert sum(item.bytes for item in step.receives) * clients * 8 == factory.get_size_info().total_broadcast_bits
    assert (
        sum(item.bytes for item in (*step.gives, *step.keeps)) * clients * 8
        == factory.get_size_info().total_aggregate_bits
    )


def test_an_aggregation_names_its_functions_and_a_later_step_what_it_receives():
    @fedstack.python_computation([np.int32, np.int32], np.int32)
    def add(x, y):
        return x + y

    @fedstack.python_computation([np.int32], np.int32)
    def report(x):
        return x

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def twice(values):
        total = fl.federated_aggregate(values, np.int32(0), add, add, report)
        return fl.federated_map(report, fl.federated_broadcast(total))

    first, second = fedstack.explain(twice, 3).steps
    assert [item.name for item in first.gives] == ["federated_aggregate(add, add, report), each 8 clients from zero"]
    assert [item.name for item in second.receives] == ["step 1"]
    assert second.runs == ("report",)
    assert [item.name for item in second.keeps] == ["for the result"]


def test_slices_that_clients_select_are_told_with_their_keys():
    @fedstack.python_computation([np.int32, np.int32], np.int32)
    def entry(values, key):
        return values + key

    @fl.federated_computation(
        fl.FederatedType(np.int32, fl.SERVER), fl.FederatedType(fl.TensorType(np.int32, [3]), fl.CLIENTS)
    )
    def select(values, keys):
        return fl.federated_select(keys, fl.federated_value(np.int32(5), fl.SERVER), values, entry)

    text = str(fedstack.explain(select, 7))
    assert "federated_select: a slice of arg.values for each key in arg.keys" in text
    assert "at least 0 B to the clients" in text
    assert "runs         entry" in text


def test_a_computation_without_clients_runs_at_the_server():
    assert str(fedstack.explain(apply_update)).endswith("1. on the server\n   runs         apply_update")


def test_a_computation_that_passes_its_argument_on_runs_nothing():
    @fl.federated_computation(fl.FederatedType(np.int32, fl.SERVER))
    def broadcast(value):
        return fl.federated_broadcast(value)

    assert "Nothing runs" in str(fedstack.explain(broadcast))
    assert "Nothing runs" in fedstack.explain(broadcast)._repr_html_()


@pytest.mark.long
@settings(max_examples=examples(60), suppress_health_check=SLOW_IS_FINE)
@given(programs())
def test_every_computation_that_runs_can_be_explained(program):
    computation, *_ = program
    explanation = fedstack.explain(computation, 3)
    assert str(explanation)
    assert explanation._repr_html_().count("<table>") <= 1
    for step in explanation.steps:
        assert step.place == "clients" or not (step.receives or step.gives)


def test_a_context_shows_its_executors():
    with fedstack.create_sync_local_execution_context() as context:
        explanation = fedstack.explain(context, 10)
    assert [label for _, label in explanation.lines] == [
        "ReferenceResolvingExecutor",
        "FederatingExecutor with 10 clients",
        "SequenceExecutor",
        "LeafExecutor",
    ]
    assert "<table>" in explanation._repr_html_()


def test_a_context_over_workers_shows_them_without_asking_them():
    with fedstack.create_async_remote_execution_context(["localhost:1", "localhost:2"]) as context:
        text = str(fedstack.explain(context, 10))
    assert "10 clients, workers: localhost:1 (not contacted yet), localhost:2 (not contacted yet)" in text


def test_a_closed_context_says_so():
    with fedstack.create_sync_local_execution_context() as context:
        pass
    with pytest.raises(ClosedError, match="The context is closed; create a new context"):
        fedstack.explain(context)


@pytest.mark.parametrize("given_value", [3, None, computation_pb2.Computation()])
def test_what_is_no_computation_is_refused(given_value):
    with pytest.raises(InvalidComputationError, match="Expected a computation or an execution context to explain"):
        fedstack.explain(given_value)


def test_a_function_that_is_not_decorated_is_refused_with_advice():
    with pytest.raises(InvalidComputationError, match="decorate it"):
        fedstack.explain(lambda x: x)


@pytest.mark.parametrize("number", [-1, 1.5, "3"])
def test_a_number_of_clients_must_be_one(number):
    with pytest.raises(InvalidValueError, match="num_clients"):
        fedstack.explain(train_round, number)


def test_a_computation_that_cannot_be_planned_raises_what_running_it_would():
    computation = train_round.to_proto()
    broken = computation_pb2.Computation()
    broken.CopyFrom(computation)
    getattr(broken, "lambda").result.reference.name = "nothing"

    broken = fl.framework.ConcreteComputation(computation_proto=broken, context_stack=fl.framework.get_context_stack())
    with pytest.raises(InvalidComputationError, match="nothing"):
        fedstack.explain(broken)


@pytest.mark.parametrize(("options", "clients"), [({}, "1 client"), ({"default_num_clients": 10}, "10 clients")])
def test_a_context_shows_the_stack_for_its_default_number_of_clients(options, clients):
    with fedstack.create_sync_local_execution_context(**options) as context:
        assert fedstack.explain(context).lines[1][1] == "FederatingExecutor with " + clients


def test_what_is_known_of_a_struct_counts_though_the_rest_depends_on_the_data():
    @fl.federated_computation(fl.FederatedType([np.float64, np.str_], fl.CLIENTS))
    def collect(values):
        return fl.federated_map(passed_on, values)

    assert "at least 80 B back" in str(fedstack.explain(collect, 10))


@fedstack.python_computation([np.float64, np.str_], [np.float64, np.str_])
def passed_on(number, text):
    return number, text
