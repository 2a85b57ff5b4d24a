"""Mistakes in federated computations, found by the language and explained by us."""

import asyncio
import re
import sys
from functools import partial
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.types.language_mistakes import MISTAKES, advice_on, fix_of, note_fix
from fedstack.errors import LeafError, TypeMismatchError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md"
VALUE = np.float32
AT_CLIENTS = fl.FederatedType(VALUE, fl.CLIENTS)
INTEGERS = fl.FederatedType(np.int32, fl.CLIENTS)
AT_SERVER = fl.FederatedType(VALUE, fl.SERVER)


@fedstack.python_computation([VALUE], VALUE)
def half(x):
    return x / np.float32(2)


@fedstack.python_computation([VALUE, VALUE], VALUE)
def add(x, y):
    return x + y


class Model:
    def __call__(self, x):
        return x


def nested(depth):
    inner = nested(depth - 1) if depth > 1 else lambda values: values
    return fl.federated_computation(lambda values: inner(values), AT_CLIENTS)


def of(parameter_type, body):
    """Returns what builds a computation with one parameter."""
    return lambda: fl.federated_computation(body, parameter_type)


def of_both(body):
    return lambda: fl.federated_computation(body, AT_SERVER, AT_CLIENTS)


BOTH = fl.federated_computation(lambda x, y: (x, y), AT_SERVER, AT_CLIENTS)
ONE = fl.federated_computation(lambda x: x, AT_CLIENTS)
NONE = fl.federated_computation(lambda: fl.federated_value(1.0, fl.SERVER))
DATA = "has no data before the computation runs"
NO_LIST = "is not a list"
MADE = {
    "a broadcast is forgotten": (of_both(lambda x, y: fl.federated_map(add, (x, y))), "fl.federated_broadcast"),
    "a zip lacks a broadcast": (of_both(lambda x, y: fl.federated_zip((x, y))), "fl.federated_broadcast"),
    "the value comes first": (of(AT_CLIENTS, lambda x: fl.federated_map(x, half)), "the function first"),
    "a constant stands beside": (of(AT_CLIENTS, lambda x: fl.federated_map(add, (x, np.float32(1)))), "constants"),
    "a weight is a constant": (of(AT_CLIENTS, lambda x: fl.federated_mean(x, 2.0)), "placement"),
    "a parameter has no placement": (of(VALUE, fl.federated_sum), "placement"),
    "an intrinsic is called with data": (lambda: fl.federated_mean([1.0, 2.0]), "in the body"),
    "an intrinsic is called outside": (lambda: fl.federated_value(1.0, fl.CLIENTS), "in the body"),
    "a value is used outside": (lambda: fl.to_value(half, None)(1.0), "in the body"),
    "a function is not decorated": (of(AT_CLIENTS, lambda x: fl.federated_map(lambda v: v, x)), "decorate"),
    "a built-in function is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(abs, x)), "decorate"),
    "a function of NumPy is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(np.sqrt, x)), "of your own"),
    "a Python function of NumPy is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(np.mean, x)), "of your own"),
    "an object that can be called is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(Model(), x)), "of your own"),
    "a constant is a set": (of(AT_CLIENTS, lambda x: fl.federated_value({1.0}, fl.CLIENTS)), "NumPy arrays"),
    "a type is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(np.float32, x)), "of your own"),
    "a partial function is mapped": (of(AT_CLIENTS, lambda x: fl.federated_map(partial(add, 1), x)), "of your own"),
    "a placement is a name": (lambda: fl.FederatedType(VALUE, "clients"), "fl.CLIENTS"),
    "a placement is missing": (lambda: fl.FederatedType(VALUE), "fl.CLIENTS"),
    "a placement of a constant is a name": (lambda: fl.federated_value(1.0, "clients"), "fl.CLIENTS"),
    "a value is multiplied": (of(AT_CLIENTS, lambda x: fl.federated_map(half, x) * 2.0), DATA),
    "a value is a factor": (of(AT_CLIENTS, lambda x: np.float32(2) * x), DATA),
    "a value is negated": (of(AT_CLIENTS, lambda x: -x), DATA),
    "NumPy takes the mean": (of(AT_CLIENTS, lambda x: np.mean(x)), DATA),
    "NumPy takes the root": (of(AT_CLIENTS, lambda x: np.sqrt(x)), DATA),
    "a value is converted": (of(AT_CLIENTS, lambda x: float(x)), DATA),
    "a value is a condition": (of(AT_CLIENTS, lambda x: x if x else half), DATA),
    "a value is compared": (of(AT_CLIENTS, lambda x: x if x > 0 else half), DATA),
    "a value is iterated": (of(AT_CLIENTS, lambda x: sum(x)), NO_LIST),
    "a value is measured": (of(AT_CLIENTS, lambda x: x[: len(x)]), NO_LIST),
    "a value is indexed": (of(AT_CLIENTS, lambda x: x[0]), NO_LIST),
    "a value is asked for its shape": (of(AT_CLIENTS, lambda x: x.shape), DATA),
    "a type is in a list": (of([AT_CLIENTS], lambda x: fl.federated_map(half, x)), "without the list"),
    "a function has more parameters": (of(AT_CLIENTS, lambda x: fl.federated_map(add, x)), "over a tuple"),
    "values are given one by one": (of(AT_CLIENTS, lambda x: fl.federated_map(add, x, x)), "over a tuple"),
    "dtypes differ": (of(fl.FederatedType(np.float64, fl.CLIENTS), lambda x: fl.federated_map(half, x)), "the same"),
    "integers are averaged": (of(INTEGERS, lambda x: fl.federated_mean(x)), "np.float32(x)"),
    "booleans have a maximum": (of(fl.FederatedType(np.bool_, fl.CLIENTS), fl.federated_max), "np.int32(x)"),
    "booleans are summed": (of(fl.FederatedType(np.bool_, fl.CLIENTS), fl.federated_sum), "np.int32(x)"),
    "a weight is a text": (
        of(AT_CLIENTS, lambda x: fl.federated_mean(x, fl.federated_value("1", fl.CLIENTS))),
        "np.int32(x)",
    ),
    "a zero is an integer": (of(AT_CLIENTS, lambda x: fl.federated_aggregate(x, 0, add, add, half)), "np.float32(0)"),
    "a sum has an open size": (
        of(fl.FederatedType((VALUE, [None]), fl.CLIENTS), fl.federated_sum),
        "declare the sizes",
    ),
    "a mean is averaged": (of(AT_CLIENTS, lambda x: fl.federated_mean(fl.federated_mean(x))), "no aggregation"),
    "clients broadcast": (of(AT_CLIENTS, fl.federated_broadcast), "aggregate"),
    "a leaf is called on a federated value": (of(AT_CLIENTS, half), "federated_map(function"),
    "a leaf is called on two": (of_both(add), "federated_map(function"),
    "an argument is too many": (lambda: BOTH(1.0, [1.0], 2.0), "for each parameter"),
    "an argument is missing": (lambda: BOTH(x=1.0), "for each parameter"),
    "an argument has another name": (lambda: BOTH(x=1.0, y=[1.0], z=1), "for each parameter"),
    "all arguments are missing": (lambda: BOTH(), "for each parameter"),
    "the one argument has a name": (lambda: ONE(x=[1.0]), "for each parameter"),
    "there is no parameter": (lambda: NONE(1.0), "for each parameter"),
    "a type is missing": (lambda: fl.federated_computation(lambda x, y: x, AT_CLIENTS), "one type per parameter"),
    "clients are looped over": (of(AT_CLIENTS, lambda x: [half(y) for y in x]), NO_LIST),
    "nothing is returned": (of(AT_CLIENTS, lambda x: None), "return a value"),
    "a type is one of Python": (lambda: fl.FederatedType(float, fl.CLIENTS), "np.float32"),
    "a type is a name": (of("float32", lambda x: x), "np.float32"),
    "computations call each other": (lambda: nested(20), "outermost"),
}


def error_of(build) -> Exception:
    try:
        build()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("mistake", MADE)
def test_there_is_advice_on_what_the_language_says_where(mistake):
    build, advice = MADE[mistake]
    assert advice in advice_on(error_of(build))


def test_every_advice_is_given_for_some_mistake_and_is_on_the_page():
    given = {advice_on(error_of(build)) for build, _ in MADE.values()}
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8").replace("`", "").lower())
    assert given == {mistake.advice for mistake in MISTAKES}
    assert [advice for advice in given if advice.lower() not in text] == []


# What the page gives no code for.
CURES = {
    "constants": lambda x: fl.federated_map(add, (x, fl.federated_value(np.float32(1), fl.CLIENTS))),
    "weights": lambda x: fl.federated_mean(x, fl.federated_value(np.float32(2), fl.CLIENTS)),
    "a tuple": lambda x: fl.federated_map(add, (x, x)),
    "a zero": lambda x: fl.federated_aggregate(x, np.float32(0), add, add, half),
    "broadcast of an aggregate": lambda x: fl.federated_broadcast(fl.federated_sum(x)),
}


@pytest.mark.parametrize("cure", CURES)
def test_what_is_advised_works(cure, fedstack_context):
    fl.federated_computation(CURES[cure], AT_CLIENTS)([1.0, 2.0])


class Value:
    """A class of the user's, which has the name of the language's."""


def divide():
    return 1 / 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Value() * 2.0,
        divide,
        lambda: fl.federated_computation(lambda: divide()),
        lambda: fl.federated_computation(lambda values, extra=1: values, AT_CLIENTS),
    ],
)
def test_there_is_no_advice_on_other_errors(build):
    assert advice_on(error_of(build)) is None


async def awaited(value):
    return await value


@pytest.mark.parametrize("result", [half, lambda x: {"a": half(x)}, lambda x: [half(x)]])
def test_awaiting_what_a_synchronous_context_returned_is_explained(result):
    with fedstack.create_sync_local_execution_context():
        found = result(1.0)
        assert "leave out `await`" in fix_of(error_of(lambda: asyncio.run(awaited(found))))


@pytest.mark.parametrize("use", [lambda found: found + 1, lambda found: found.model, lambda found: found["model"]])
def test_using_a_coroutine_of_an_asynchronous_context_as_its_result_is_explained(use):
    with fedstack.create_async_local_execution_context():
        found = half(1.0)
        assert "write `await` before" in fix_of(error_of(lambda: use(found)))
    found.close()
    assert fix_of(error_of(lambda: use(found))) is None


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
def test_a_transformation_of_jax_on_a_computation_is_refused_with_its_place(transform, fedstack_context):
    jax = pytest.importorskip("jax")
    error = error_of(lambda: getattr(jax, transform)(half)(np.ones(1 if transform == "vmap" else (), np.float32)))
    assert isinstance(error, TypeMismatchError)
    assert "Tracer; at arg; call jax.jit, jax.grad and jax.vmap inside the decorated function" in str(error)


class UnreadableError(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_an_error_without_a_text_stays_as_it_is():
    def build():
        raise UnreadableError

    error = error_of(lambda: fl.federated_computation(build))
    assert type(error) is UnreadableError
    note_fix(error)


needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")


@needs_notes
def test_a_note_is_added_once():
    error = error_of(MADE["a value is negated"][0])
    note_fix(error)
    note_fix(error)
    assert error.__notes__ == [fix_of(error)]


@needs_notes
def test_a_leaf_that_is_called_on_a_federated_value_notes_it():
    error = error_of(MADE["a leaf is called on a federated value"][0])
    assert type(error) is fl.framework.TypeNotAssignableError
    assert error.__notes__ == [
        "To fix it: map the function instead of calling it on a federated value, fl.federated_map(function, value)."
    ]


def test_a_leaf_that_calls_intrinsics_says_where_to_call_them(fedstack_context):
    @fedstack.python_computation([VALUE], VALUE)
    def total(x):
        return fl.federated_sum(x)

    with pytest.raises(LeafError, match=r"got a float32\).*only in the body of a federated computation"):
        total(1.0)
