"""What a function by value brings along is named where it is large or cannot be written."""

import threading
from collections.abc import Callable
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves import function_pickles, python_functions
from fedstack.computations.leaves.carriers import portable_carrier
from fedstack.computations.leaves.function_pickles import variables_of
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.errors import CarrierError
from fedstack.foundations.caches import SharedCache

LARGE = np.zeros(2_000_000)  # 16 MB


@pytest.fixture(autouse=True)
def nobody_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_pickles, "_warned_of", SharedCache(10, 10))


def decorated(function: Callable[..., Any]) -> Any:
    return fedstack.python_computation([np.int32], np.int32)(function)


def send(function: Callable[..., Any]) -> None:
    """Makes a function ready to leave the process by value."""
    leaf = decorated(function)
    portable_carrier(leaf.to_proto().data.content, Destination(takes_code=True))


def mapped(leaf: Any) -> Any:
    clients = fl.FederatedType(np.int32, fl.CLIENTS)
    return fl.federated_computation(lambda xs: fl.federated_map(leaf, xs), clients)


def of_a_script(text: str, /, **names: Any) -> Any:
    """Returns the function `leaf` of a script."""
    names["__name__"] = "__main__"
    exec(text, names)
    return names["leaf"]


def over(source: Any) -> Any:
    """Returns functions that refer to `source` in all ways that there are."""

    def by_closure(x: Any) -> Any:
        return source and x

    def of_default(x: Any, source: Any = source) -> Any:
        return source and x

    def of_keyword(x: Any, *, source: Any = source) -> Any:
        return source and x

    def by_default(x: Any) -> Any:
        return of_default(x)

    def by_keyword(x: Any) -> Any:
        return of_keyword(x)

    def by_helper(x: Any) -> Any:
        return by_closure(x)

    def inside(x: Any) -> Any:
        return [source for _ in range(2)] and x

    computation = decorated(by_closure)

    def by_computation(x: Any) -> Any:
        return computation(x)

    by_global = of_a_script("def leaf(x):\n    return x if source is None else x", source=source)
    by_inner_global = of_a_script("def leaf(x):\n    return [(lambda: source)() for _ in range(2)]", source=source)
    helper = "def helper(x):\n    return source\n"
    by_helpers_global = of_a_script(f"{helper}def leaf(x):\n    return helper(x)", source=source)
    by_cached_helper = of_a_script(
        f"import functools\n{helper}cached = functools.lru_cache(helper)\ndef leaf(x):\n    return cached(x)",
        source=source,
    )
    return [
        by_closure,
        by_default,
        by_keyword,
        by_helper,
        inside,
        by_computation,
        by_global,
        by_inner_global,
        by_helpers_global,
        by_cached_helper,
    ]


@pytest.mark.parametrize("number", range(len(over(None))))
def test_a_variable_that_cannot_be_written_is_named_wherever_it_is(number: int) -> None:
    function = over({"a": [threading.Lock()]})[number]
    with pytest.raises(
        CarrierError,
        match=r"Pickling .* raised TypeError: cannot pickle '_thread.lock'.* \(in its variable 'source'\); do not "
        "refer to objects that belong to this process, such as locks and open files$",
    ):
        send(function)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(over(None))))
def test_a_large_variable_is_warned_of_by_name_and_once(number: int, caplog: pytest.LogCaptureFixture) -> None:
    function = over(LARGE)[number]
    for _ in range(2):
        send(function)
    assert [record.getMessage() for record in caplog.records] == [
        f"'source' (16 MB) is sent with {function.__name__!r} in each call; pass it as an argument, or load it in the "
        "worker"
    ]


def test_several_large_variables_are_named_the_largest_first(caplog: pytest.LogCaptureFixture) -> None:
    names = {"small": np.zeros(10), "large": LARGE[:500_000], "larger": LARGE}
    send(of_a_script("def leaf(x):\n    return small, large, larger", **names))
    assert [record.getMessage() for record in caplog.records] == [
        "'larger' (16 MB), 'large' (4 MB) are sent with 'leaf' in each call; pass them as arguments, or load them in "
        "the worker"
    ]


def test_what_is_large_as_a_whole_only_is_told_by_its_size(caplog: pytest.LogCaptureFixture) -> None:
    names = {f"part_{index}": np.zeros(100_000) for index in range(12)}
    send(of_a_script(f"def leaf(x):\n    return {', '.join(names)}", **names))
    assert [record.getMessage() for record in caplog.records] == [
        "10 MB are sent with 'leaf' in each call; pass them as arguments, or load them in the worker"
    ]


def test_what_is_small_or_goes_by_name_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def leaf(x: Any) -> Any:
        return np.add(x, len(LARGE[:1]))

    send(of_a_script("def leaf(x):\n    return numbers", numbers=np.zeros(100_000)))
    assert {variable.name for variable in variables_of(leaf)} == {"LARGE"}
    assert not caplog.records


def test_a_function_that_refers_to_itself_and_to_nothing_yet_has_no_variables() -> None:
    def make() -> Any:
        def leaf(x: Any) -> Any:
            return leaf(x) if x else later

        return leaf
        later = 7

    assert list(variables_of(make())) == []


def test_a_function_that_is_decorated_anew_in_each_round_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_functions, "_MANY", 5)

    def new_work(number: int) -> Any:
        def work(x: Any) -> Any:
            return x + number

        return work

    for number in range(12):
        mapped(decorated(new_work(number)))
    assert [record.getMessage() for record in caplog.records] == [
        "'work' has been decorated and built into computations 5 times, and all copies stay in memory; decorate it "
        "once, and pass the values that differ as arguments"
    ]


def test_different_functions_of_one_name_are_not_counted_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_functions, "_MANY", 3)
    for function in (lambda x: x, lambda x: x + 1, lambda x: x + 2, lambda x: x + 3):
        mapped(decorated(function))
    assert not caplog.records
