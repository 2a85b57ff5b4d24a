"""The options of context makers, as `help()`, Tab and type checkers see them."""

import inspect
import pydoc
import re

import pytest

import fedstack
from fedstack.errors import InvalidValueError

MAKERS = {
    getattr(fedstack, f"{what}_{kind}_{where}_execution_context"): options
    for what in ("create", "set")
    for kind in ("sync", "async")
    for where, options in (("local", fedstack.LocalOptions), ("remote", fedstack.RemoteOptions))
}
FACTORIES = [fedstack.local_executor_factory, fedstack.sizing_executor_factory, fedstack.remote_executor_factory]
ALL = [*MAKERS, *FACTORIES, fedstack.executors.RemoteExecutor.connect]


@pytest.mark.parametrize("make", MAKERS)
def test_a_signature_has_each_option_by_name_with_its_default(make):
    parameters = inspect.signature(make).parameters
    options = MAKERS[make].__annotations__
    assert set(options) == set(parameters) - {"targets"}
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    assert parameters["default_num_clients"].default == 0
    assert parameters["progress"].default is False
    assert all(parameters[name].default is not inspect.Parameter.empty for name in options)


@pytest.mark.parametrize("make", ALL)
def test_help_says_what_each_option_does(make):
    text = pydoc.plain(pydoc.render_doc(make))
    for name in inspect.signature(make).parameters:
        assert re.search(rf"^ +{name}: [A-Z].+", text, re.MULTILINE), name
    assert "**options" not in text


@pytest.mark.parametrize("make", [*ALL, fedstack.ClientFailures, fedstack.RetryPolicy])
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(make):
    known = next(name for name in inspect.signature(make).parameters if name.endswith(("clients", "seconds", "pause")))
    with pytest.raises(
        TypeError, match=f"^Expected no options other than .*{known}.*, found {known[:-1]}; write {known}$"
    ):
        make(**{known[:-1]: 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda value: fedstack.create_sync_local_execution_context(debug=value),
        lambda value: fedstack.create_sync_remote_execution_context(["localhost:1"], stream_structs=value),
        lambda value: fedstack.executors.RemoteExecutor.connect("localhost:1", stream_structs=value),
    ],
    ids=["debug", "stream_structs of a context", "stream_structs"],
)
@pytest.mark.parametrize("value", [1, 0, "no", None])
def test_an_option_that_is_yes_or_no_takes_nothing_else(make, value):
    with pytest.raises(
        InvalidValueError, match=r"Expected (debug|stream_structs) to be True or False, found (int|str|N)"
    ):
        make(value)


def test_a_malformed_address_is_an_error_without_the_frames_that_look_at_it():
    with pytest.raises(fedstack.errors.InvalidValueError, match="replace the scheme with grpc://") as caught:
        fedstack.create_sync_remote_execution_context("http://localhost")
    assert len(caught.traceback) == 2, "this line and that of the function"
