"""Errors on their way through a status: the class, the words and the traceback arrive, whatever peers do to them."""

import linecache
import os
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstack
from fedstack import errors
from fedstack.computations.leaves import leaf_runtimes
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.types.language import RetryableError, computation_pb2
from fedstack.proto.extensions_pb2 import ErrorDetail, Status
from fedstack.transport.wire.status import (
    MAX_DETAILS_BYTES,
    Code,
    RemoteTraceback,
    StatusError,
    code_of,
    details_of,
    error_from_status,
    message_of,
)

CLASSES = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, errors.FedstackError)
]


def sent(error: Exception, path=()) -> Exception:
    """What a client gets when a service raises `error`."""
    return error_from_status(code_of(error), message_of(error), details_of(error, path), "localhost:8000")


def raised(function, *arguments) -> Exception:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def fail_at_client(text="negative weight", client_index=3):
    def weigh():
        raise ValueError(text)

    try:
        weigh()
    except ValueError as error:
        raise errors.LeafError(
            f"'weigh' raised ValueError: {text}",
            computation_name="weigh",
            client_index=client_index,
        ) from error


@pytest.mark.parametrize("error_class", [*CLASSES, RetryableError])
def test_an_error_arrives_with_its_class_and_message(error_class):
    received = sent(error_class("Expected int32, found float32; pass an integer"))
    assert type(received) is error_class
    assert str(received) == "Expected int32, found float32; pass an integer"


def test_a_leaf_error_arrives_with_its_computation_and_client():
    received = sent(raised(fail_at_client))
    assert isinstance(received, errors.LeafError)
    assert (received.computation_name, received.client_index) == ("weigh", 3)


def test_a_leaf_error_from_the_server_has_no_client():
    received = sent(raised(fail_at_client, "negative weight", None))
    assert isinstance(received, errors.LeafError)
    assert received.client_index is None


def test_the_cause_of_a_received_leaf_error_shows_the_lines_of_the_user():
    printed = "".join(traceback.format_exception(sent(raised(fail_at_client))))
    assert "raise ValueError(text)" in printed
    assert "ValueError: negative weight" in printed
    assert "at localhost:8000" in printed


def test_a_received_leaf_error_has_lines_that_the_peer_did_not_have(monkeypatch):
    cell = "<ipython-input-3>"
    error = errors.LeafError(f"'f' raised ValueError; at client 1\n  File \"{cell}\", line 1, in f")
    monkeypatch.setitem(linecache.cache, cell, (9, None, ["raise ValueError\n"], cell))
    assert str(sent(error)).endswith("in f\n    raise ValueError")


def test_where_an_error_came_from_is_its_cause():
    cause = sent(errors.CarrierError("no"), ["FederatingExecutor", "LeafExecutor"]).__cause__
    assert isinstance(cause, RemoteTraceback)
    assert (cause.address, cause.path) == ("localhost:8000", ("FederatingExecutor", "LeafExecutor"))
    assert str(cause) == "at localhost:8000, in FederatingExecutor > LeafExecutor"


def test_raised_where_the_call_failed_it_shows_the_peers_traceback_and_not_that_of_the_call():
    def call():
        try:
            raise OSError("the call failed")
        except OSError:
            error = sent(errors.CarrierError("no such function"))
            raise error from error.__cause__

    printed = "".join(traceback.format_exception(raised(call)))
    assert "at localhost:8000" in printed
    assert "the call failed" not in printed


def test_a_refusal_shows_no_line_of_this_package_but_those_of_the_users_module():
    def load(computation):
        return load_leaf(computation)

    cause = sent(raised(load, computation_pb2.Computation())).__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "return load_leaf(computation)" in cause.text
    assert os.path.dirname(fedstack.__file__) + os.sep not in cause.text


def test_what_nobody_has_foreseen_shows_every_line():
    def load():
        load_leaf(None)

    cause = sent(raised(load)).__cause__
    assert isinstance(cause, RemoteTraceback)
    assert f'File "{leaf_runtimes.__file__}"' in cause.text


def test_a_circle_of_causes_does_no_harm():
    one, other = errors.InvalidValueError("one"), errors.InvalidValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert str(sent(one)) == "one"


def test_an_error_that_passed_through_two_services_keeps_both_tracebacks():
    error = sent(raised(fail_at_client))
    received = error_from_status(code_of(error), message_of(error), details_of(error), "coordinator:1")
    printed = "".join(traceback.format_exception(received))
    assert "at coordinator:1" in printed
    assert "at localhost:8000" in printed
    assert "raise ValueError(text)" in printed


def test_a_retryable_error_of_somebody_elses_stays_retryable():
    class Preempted(RetryableError):
        pass

    error = Preempted("the machine is wanted elsewhere")
    assert code_of(error) == Code.UNAVAILABLE
    assert type(sent(error)) is RetryableError
    assert type(error_from_status(code_of(error), "", None, "")) is errors.WorkerUnavailableError


def test_a_subclass_that_peers_do_not_know_arrives_as_its_base():
    class ShapeError(errors.TypeMismatchError):
        pass

    assert type(sent(ShapeError("Expected 2 dimensions, found 3"))) is errors.TypeMismatchError


def test_an_error_of_nobodys_is_an_internal_one_with_its_class_and_text():
    received = sent(KeyError("weights"))
    assert isinstance(received, errors.RemoteError)
    assert received.code == "INTERNAL"
    assert "failed with INTERNAL: KeyError: 'weights'" in str(received)
    assert message_of(KeyError("weights")) == "KeyError: 'weights'"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.NOT_FOUND, errors.RemoteError),
        (Code.UNIMPLEMENTED, errors.RemoteError),
        (Code.UNAVAILABLE, errors.WorkerUnavailableError),
        (Code.FAILED_PRECONDITION, errors.StaleSessionError),
    ],
)
def test_a_plain_status_arrives_as_what_stands_for_its_code_with_its_message(code, expected):
    received = sent(StatusError(code, "no method 'train'"))
    assert type(received) is expected
    assert str(received) == "no method 'train'"
    assert getattr(received, "code", code.name) == code.name


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.UNAVAILABLE, errors.WorkerUnavailableError),
        (Code.FAILED_PRECONDITION, errors.StaleSessionError),
        (Code.UNAUTHENTICATED, errors.AuthenticationError),
        (Code.PERMISSION_DENIED, errors.AuthenticationError),
        (Code.RESOURCE_EXHAUSTED, errors.ResourceLimitError),
        (Code.DEADLINE_EXCEEDED, errors.DeadlineExceededError),
        (Code.INVALID_ARGUMENT, errors.InvalidValueError),
        (Code.UNIMPLEMENTED, errors.RemoteError),
        (Code.INTERNAL, errors.RemoteError),
        (Code.CANCELLED, errors.WorkerUnavailableError),
        (4711, errors.RemoteError),
    ],
)
def test_a_peer_without_details_is_understood_by_its_codes(code, expected):
    received = error_from_status(code, "it says so", None, "localhost:8000")
    assert type(received) is expected
    assert "localhost:8000" in str(received)
    assert "it says so" in str(received)


@pytest.mark.parametrize("who", ["", "SERVER: "])
def test_a_message_that_is_larger_than_a_server_takes_is_an_error_that_names_the_option(who):
    said = f"{who}Received message larger than max (5000 vs. 1024)"
    received = error_from_status(Code.RESOURCE_EXHAUSTED, said, None, "localhost:8000")
    assert type(received) is errors.ResourceLimitError
    assert str(received) == (
        f"The call to localhost:8000 failed with RESOURCE_EXHAUSTED: {said}; send less data at a time, or raise the "
        "server's limit (`fedstack serve --max-message-bytes`)"
    )


def test_codes_that_make_other_clients_try_again_are_used_where_that_helps():
    # A call that has tried as often as it may ends in `RetryLimitError` itself. Whoever made it may try again; that
    # another session would help is what a code would say.
    limit = errors.RetryLimitError
    retried = {code_of(found("")) for found in CLASSES if issubclass(found, RetryableError) and found is not limit}
    others = {code_of(found("")) for found in CLASSES if not issubclass(found, RetryableError)}
    assert retried == {Code.UNAVAILABLE, Code.FAILED_PRECONDITION, Code.DEADLINE_EXCEEDED}
    assert not retried & others


def test_a_remote_error_is_passed_on_with_its_code():
    assert code_of(errors.RemoteError("", code="NOT_FOUND")) == Code.NOT_FOUND
    assert code_of(errors.RemoteError("", code="42")) == Code.UNKNOWN


texts = st.text(max_size=50) | st.text(alphabet="aé😀\ud800\n%", min_size=1, max_size=9).map(lambda text: text * 2000)


@given(text=texts, name=texts, steps=st.lists(texts, max_size=20))
def test_details_and_message_stay_small_enough_for_any_peer(text, name, steps):
    error = errors.LeafError(text, computation_name=name, client_index=2**64 - 1)
    error.__cause__ = ValueError(text)
    assert len(details_of(error, steps)) <= MAX_DETAILS_BYTES
    assert len(message_of(error).encode()) <= 1024
    assert isinstance(sent(error, steps), errors.LeafError)


def test_of_a_deep_traceback_the_innermost_frames_are_kept():
    def descend(depth):
        if depth == 0:
            raise TypeError("at the bottom")
        descend(depth - 1) if depth % 2 else descend_again(depth - 1)

    def descend_again(depth):
        descend(depth)

    cause = sent(raised(descend, 200)).__cause__
    assert isinstance(cause, RemoteTraceback)
    assert cause.text.startswith("[…] ")
    assert cause.text.endswith('raise TypeError("at the bottom")\nTypeError: at the bottom\n')


def test_of_a_long_text_the_beginning_and_the_end_are_kept_and_the_lines_of_the_user_too():
    received = sent(raised(fail_at_client, f"<{'x' * 100_000}>"))
    assert str(received).startswith("'weigh' raised ValueError: <xxx")
    assert str(received).endswith("xxx>")
    assert "raise ValueError(text)" in str(received.__cause__)


def test_an_exception_that_cannot_be_printed_does_no_harm():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    error = errors.LeafError("the function raised")
    error.__cause__ = Unprintable()
    assert str(sent(error)) == "the function raised"
    assert "RuntimeError" in str(sent(Unprintable()))


@given(
    details=st.binary() | st.builds(lambda value: b"\x1a" + bytes([len(value)]) + value, st.binary(max_size=100)),
    code=st.integers(-1, 20),
)
def test_garbage_for_details_is_left_out_of_account(details, code):
    assert str(error_from_status(code, "why", details, "here")) == str(error_from_status(code, "why", None, "here"))


def details_with(type_url="type.googleapis.com/fedstack.v1.ErrorDetail", **fields) -> bytes:
    status = Status()
    status.details.add(type_url=type_url, value=ErrorDetail(**fields).SerializeToString())
    return status.SerializeToString()


def test_details_of_another_kind_are_left_out_of_account():
    details = details_with("type.googleapis.com/google.rpc.RetryInfo", error="LeafError", message="no")
    assert type(error_from_status(14, "why", details, "here")) is errors.WorkerUnavailableError


@pytest.mark.parametrize("name", ["SystemExit", "KeyError", "RetryableError2", "__builtins__", "FedstackError\0"])
def test_a_class_that_fedstack_does_not_have_falls_back_on_the_code(name):
    received = error_from_status(9, "why", details_with(error=name, message="no such thing"), "here")
    assert type(received) is errors.StaleSessionError
    shown = name.replace("\0", "\\x00")
    assert f"{shown}: no such thing" in str(received)


def test_huge_details_do_no_harm():
    details = details_with(error="LeafError", message="m" * 10**6, path=["p"] * 10**4, client_index=2**64 - 1)
    received = error_from_status(2, "", details, "here")
    assert isinstance(received, errors.LeafError)
    assert "".join(traceback.format_exception(received))
