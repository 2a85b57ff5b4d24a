"""Whose fault a call's error is: a result that does not fit is the server's, and a server that is away is not slow."""

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from free_ports import free_port

import fedstack
from fedstack.errors import DeadlineExceededError, LeafError, TypeMismatchError, WorkerUnavailableError
from fedstack.service import rpc
from fedstack.service.rpc import Code


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("returned", "result_type"),
    [(2.5, np.int32), ([1, 2], (np.int32, [3])), ({"x": 1}, [("y", np.int32)]), (None, np.int32)],
    ids=["dtype", "shape", "names", "nothing"],
)
def test_a_result_that_does_not_fit_is_the_servers_error(server, client, inline, returned, result_type):
    server.register("wrong", lambda x: returned, inline, parameter_types=[np.int32], result_type=result_type)
    for _ in range(2):  # the second call goes another way
        code, message = client.call("wrong", [1]).get_error()
        assert code == Code.UNKNOWN
        assert "returned a value that does not match its result type: Expected" in message
    with pytest.raises(LeafError):
        client.wrong_blocking(1)
    assert client.call("wrong", ["one"]).get_error()[0] == Code.INVALID_ARGUMENT


def test_so_is_one_at_a_client_of_a_federated_method(server, client):
    half = fedstack.python_computation(np.int32, np.int32)(lambda x: 0.5 if x == 7 else 1)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def halves(values):
        return fl.federated_sum(fl.federated_map(half, values))

    server.register("halves", halves)
    client.refresh()
    with pytest.raises(LeafError, match="returned a value that does not match") as raised:
        client.halves_blocking([1, 7, 3])
    assert raised.value.client_index == 1
    with pytest.raises(TypeMismatchError):  # without a server in between nobody is in doubt
        with fedstack.create_sync_local_execution_context():
            halves([1, 7, 3])


@pytest.mark.parametrize("way", ["registered", "computation"])
def test_a_method_that_returns_nothing_may_return_none(server, client, way):
    def nothing(x):
        return None

    if way == "registered":
        server.register("none", nothing, parameter_types=[np.int32], result_type=())
    else:
        server.register("none", fedstack.python_computation([np.int32], ())(nothing))
    client.refresh()
    assert client.none_blocking(1) is None


def test_a_computation_that_returns_nothing_may_return_none_at_clients_too():
    nothing = fedstack.python_computation(np.int32, ())(lambda x: None)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def at_clients(values):
        return fl.federated_map(nothing, values)

    with fedstack.create_sync_local_execution_context():
        assert nothing(1) == ()
        assert [tuple(one) for one in at_clients([1, 2, 3])] == [(), (), ()]


def test_a_call_fails_at_once_where_nobody_listens_if_it_does_not_wait():
    port = free_port()
    with pytest.raises(WorkerUnavailableError, match="no server is listening"):
        rpc.Client.create("grpc", f"localhost:{port}", wait_for_ready=False)
    quick = rpc.Client.create("grpc", f"localhost:{port}", list_registered_methods=False, wait_for_ready=False)
    with quick:
        assert quick.call("add", [1, 2]).get_error()[0] is Code.UNAVAILABLE
        server = rpc.Server.create("grpc", f"localhost:{port}")
        server.register("add", lambda x, y: x + y, parameter_types=[np.int32, np.int32], result_type=np.int32)
        with server:
            assert quick.call("add", [1, 2]).get_value() == 3
            assert quick.add_blocking(1, 2) == 3
        with pytest.raises(WorkerUnavailableError):
            quick.add_blocking(1, 2)
        assert quick.add(1, 2).get_error()[0] is Code.UNAVAILABLE


def test_away_and_slow_are_told_apart_however_short_the_time(server, client, gate):
    assert client.call("wait", [1], timeout_in_ms=1).get_error()[0] is Code.DEADLINE_EXCEEDED
    with pytest.raises(DeadlineExceededError):
        client.wait_blocking(1, timeout_in_ms=1)
    gate.opened.set()
    server.stop(0)
    # A busy machine takes its time to refuse a connection.
    await_until(lambda: client.call("wait", [1], timeout_in_ms=1).get_error()[0] is Code.UNAVAILABLE)
    with pytest.raises(WorkerUnavailableError):
        client.wait_blocking(1, timeout_in_ms=1)
    with pytest.raises(WorkerUnavailableError):
        client.refresh(timeout_in_ms=1)
