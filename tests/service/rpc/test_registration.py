"""What may be registered under which names, and when; servers that start and stop."""

import socket

import federated_language as fl
import numpy as np
import pytest
from served_methods import WALL, add

import fedstack
from fedstack.errors import (
    AddressError,
    ClosedError,
    FedstackError,
    InvalidComputationError,
    InvalidValueError,
)
from fedstack.service import rpc
from fedstack.service.rpc.method_table import RESERVED


@pytest.fixture
def unstarted():
    server = rpc.Server.create("grpc", "localhost:0")
    yield server
    server.stop()


def test_another_layer_is_refused_on_both_sides():
    with pytest.raises(ValueError, match="Expected \"grpc\" as rpc_layer, found str 'http'"):
        rpc.Server.create("http", "localhost:0")
    with pytest.raises(ValueError, match='Expected "grpc" as rpc_layer'):
        rpc.Client.create("http", "localhost:1")


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":80", "localhost:70000", "localhost:x"])
def test_an_address_to_listen_at_has_a_host_and_a_port(address):
    with pytest.raises(
        InvalidValueError, match="Expected (host:port|a port|a number as the port|the address|an address)"
    ):
        rpc.Server.create("grpc", address)


def test_a_duplicate_name_is_refused_and_told_what_it_is(unstarted):
    unstarted.register("add", add)
    with pytest.raises(
        InvalidValueError, match=r"'add', which is already registered as add\(x: int32, y: int32\) -> int32"
    ):
        unstarted.register("add", add)
    assert unstarted.methods == ("add",)


@pytest.mark.parametrize("name", ["call", "create", "close", "add_blocking", "", "_hidden", 3, "x" * 201, "\ud800"])
def test_a_name_that_a_client_could_not_show_is_refused(unstarted, name):
    with pytest.raises(InvalidValueError, match="Expected a name"):
        unstarted.register(name, add)


def test_all_that_clients_have_of_their_own_is_reserved():
    assert {name for name in dir(rpc.Client) if not name.startswith("_")} == RESERVED


def test_a_python_function_needs_its_types_and_a_computation_none(unstarted):
    with pytest.raises(InvalidComputationError, match="Expected one parameter type for each of the 2 parameters"):
        unstarted.register("f", lambda x, y: x + y)
    with pytest.raises(InvalidValueError, match="omit both"):
        unstarted.register("add", add, parameter_types=[np.int32])
    with pytest.raises(InvalidComputationError, match="Expected a computation or a Python function for 'f'"):
        unstarted.register("f", 3)
    unstarted.register("f", lambda x, y: x + y, parameter_types=[np.int32, np.int32])


def test_a_function_without_parameters_needs_no_types(unstarted):
    def seven() -> np.int32:
        return 7

    unstarted.register("seven", seven)
    assert unstarted.methods == ("seven",)


def test_a_coroutine_function_is_refused(unstarted):
    async def later(x):
        return x

    with pytest.raises(InvalidComputationError, match="Expected a function that returns its result"):
        unstarted.register("later", later, parameter_types=[np.int32], result_type=np.int32)


def test_a_parameter_with_the_name_of_an_option_of_calls_is_refused(unstarted):
    with pytest.raises(InvalidComputationError, match="found one named 'timeout_in_ms', which is reserved"):
        unstarted.register("f", lambda timeout_in_ms: timeout_in_ms, parameter_types={"timeout_in_ms": np.int32})


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "\ud800"], ids=ascii)
def test_a_name_that_would_upset_a_terminal_is_refused(unstarted, name):
    with pytest.raises(InvalidValueError, match="Expected a name of printable characters"):
        unstarted.register(name, add)


def test_functions_of_functions_are_refused(unstarted):
    @fl.federated_computation(fl.FunctionType(np.int32, np.int32))
    def apply(function):
        return function(1)

    with pytest.raises(InvalidComputationError, match="accepts and returns only values"):
        unstarted.register("apply", apply)


def test_what_has_clients_does_not_run_inline(unstarted):
    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(values)

    with pytest.raises(InvalidComputationError, match="omit inline=True"):
        unstarted.register("total", total, inline=True)


def test_a_busy_port_is_told_at_start(unstarted):
    unstarted.start()
    unstarted.start()  # a second time is nothing
    port = int(unstarted.target.rpartition(":")[2])
    other = rpc.Server.create("grpc", f"localhost:{port}")
    other.register("add", add)  # each server has methods of its own
    with pytest.raises(AddressError, match=f"Port {port} of localhost is in use"):
        other.start()
    other.stop()


def test_a_host_that_is_not_here_is_told_at_start():
    server = rpc.Server.create("grpc", "no-such-host.invalid:0", insecure=True)
    with pytest.raises(FedstackError, match=r"no-such-host\.invalid"):
        server.start()
    server.stop()


def test_stop_frees_the_port_at_once_with_clients_connected(unstarted):
    unstarted.register("add", add)
    unstarted.start()
    target = unstarted.target
    with rpc.Client.create("grpc", target, timeout_in_ms=WALL * 1000) as client:
        assert client.add_blocking(1, 2) == 3
        unstarted.stop()
        with rpc.Server.create("grpc", target) as again:
            again.register("add", add)
            assert again.target == target
    with pytest.raises(ClosedError):
        unstarted.start()


def test_the_address_before_the_start_is_not_known(unstarted):
    with pytest.raises(ClosedError, match="call start"):
        _ = unstarted.target


def test_other_machines_need_tls_or_the_word_insecure():
    with pytest.raises(InvalidValueError, match="Expected TLS"):
        rpc.Server.create("grpc", "0.0.0.0:0")
    with rpc.Server.create("grpc", "0.0.0.0:0", insecure=True) as server:
        assert server.target.startswith("127.0.0.1:")


def test_a_scheme_that_says_tls_needs_a_certificate():
    with pytest.raises(InvalidValueError, match="The server at grpcs://localhost:0 needs a certificate"):
        rpc.Server.create("grpc", "grpcs://localhost:0")


def test_a_server_listens_at_a_socket(tmp_path):
    with rpc.Server.create("grpc", f"unix:{tmp_path}/rpc") as server:
        server.register("add", add)
        with rpc.Client.create("grpc", server.target, timeout_in_ms=WALL * 1000) as client:
            assert client.add_blocking(1, 2) == 3


def test_a_server_listens_nowhere_but_where_it_was_told():
    with rpc.Server.create("grpc", "127.0.0.1:0") as server, socket.socket() as other:
        port = int(server.target.rpartition(":")[2])
        assert other.connect_ex(("127.0.0.2", port)) != 0


def test_methods_may_be_registered_later_and_are_found(server, client):
    with pytest.raises(AttributeError, match="refresh"):
        client.seven()

    @fedstack.python_computation(None, np.int32)
    def seven():
        return 7

    server.register("seven", seven)
    assert client.call("seven").get_value() == 7
    assert client.seven_blocking() == 7
