"""What users of TensorFlow's RPC saw: the rows of that table which no other test here is about, and what they see."""

import threading

import numpy as np
import pytest

from fedstack.errors import DeadlineExceededError, LeafError, TypeMismatchError
from fedstack.service import rpc
from fedstack.service.rpc import Code

WALL_MS = 30_000


def test_what_a_function_captures_is_shared_by_all_calls(server, client):
    calls, lock = [], threading.Lock()

    def count():
        with lock:
            calls.append(len(calls))
            return len(calls)

    server.register("count", count, result_type=np.int32)
    results = [client.call("count") for _ in range(20)]
    assert sorted(result.get_value() for result in results) == list(range(1, 21))


def test_a_result_is_the_same_each_time_and_its_state_is_a_bool(client):
    result = client.add(1, 2)
    assert result.is_ok() is True  # there: a tensor
    assert result.get_value() is result.get_value()
    failed = client.fail(1)
    assert failed.is_ok() is False
    for _ in range(2):
        with pytest.raises(LeafError):
            failed.get_value()


def test_a_client_of_the_same_name_and_address_leaves_the_first_as_it_is(server):
    with rpc.Client.create("grpc", server.target, name="one", timeout_in_ms=WALL_MS) as first:
        with rpc.Client.create("grpc", server.target, name="one", timeout_in_ms=WALL_MS) as second:
            assert second.add_blocking(1, 2) == 3
        assert first.add_blocking(1, 2) == 3  # there: its resource was replaced


def test_void_methods_and_structures_need_no_output_specs(server, client):
    """There: `None`, or an error about the number of output types."""
    server.register("split", lambda x: {"low": x - 1, "high": [x + 1]}, parameter_types=[np.int32])
    assert client.call("nothing").get_value() is None
    assert client.call("split", [3]).get_value() == {"low": 2, "high": (4,)}


@pytest.mark.parametrize("specs", [[np.int32, np.int32], np.float32, (np.int32, [2])], ids=["two", "dtype", "shape"])
def test_output_specs_that_do_not_fit_are_an_error_of_the_call(client, specs):
    """There: another shape was not noticed."""
    code, message = client.call("add", [1, 2], output_specs=specs).get_error()
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("Expected int32 as output_specs, found")


@pytest.mark.parametrize("args", [[1], [1, 2, 3], [1.5, 2], [[1, 2], 2]], ids=["few", "many", "dtype", "shape"])
def test_arguments_that_do_not_fit_have_one_code(client, args):
    """There: surplus ones were ignored, and other shapes broadcast."""
    assert client.call("add", args).get_error()[0] is Code.INVALID_ARGUMENT
    with pytest.raises(TypeMismatchError):
        client.add_blocking(*args)


def test_errors_of_blocking_calls_can_be_printed(client, gate):
    """There: the message was bytes, and str() raised."""
    with pytest.raises(LeafError) as failed:
        client.fail_blocking(1)
    with pytest.raises(DeadlineExceededError) as late:
        client.wait_blocking(1, timeout_in_ms=50)
    assert str(failed.value)
    assert str(late.value)


def test_more_calls_run_at_a_time_than_there_are_cores(server, client):
    barrier = threading.Barrier(8)
    server.register("meet", lambda: barrier.wait(WALL_MS / 1000), result_type=np.int32)
    results = [client.call("meet") for _ in range(8)]
    assert sorted(result.get_value() for result in results) == list(range(8))
