"""A task of a cluster: where it listens, when it ends, who may use it."""

import asyncio
import contextlib
import gc
import socket
import threading
import weakref

import federated_language as fl
import numpy as np
import pytest
from calling import WALL
from echo_service import EchoService
from free_ports import free_port

import fedstack
from fedstack.errors import AddressError, AuthenticationError, ClosedError, InvalidValueError, MembershipError
from fedstack.executors import RemoteExecutor
from fedstack.leaves import CarrierPolicy
from fedstack.service import ClusterSpec, ExecutorService, Server, ServerConfig, ServerDef, ServiceLimits, rpc
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials

INTS = fl.FederatedType(np.int64, fl.CLIENTS)
LOCAL = {"worker": ["localhost:0"]}


@fedstack.python_computation(np.int64, np.int64)
def double(x):
    return x * 2


@fl.federated_computation(INTS)
def total(values):
    return fl.federated_sum(fl.federated_map(double, values))


def total_at(place, **options):
    with fedstack.create_sync_remote_execution_context(place, **options):
        return total([1, 2, 3])


def port_of(server):
    return int(server.target.rpartition(":")[2])


def can_be_dialled(host, port):
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=WALL):
        return True
    return False


def test_a_server_runs_computations_for_whoever_has_its_target():
    with Server(LOCAL) as server:
        assert server.target.startswith("grpc://localhost:")
        assert total_at(server.target) == 12
        with RemoteExecutor.connect(server.target) as executor:
            assert server.target.endswith(executor.stub.address)


def test_servers_are_found_by_the_cluster_that_names_them():
    ports = [free_port(), free_port()]
    spec = ClusterSpec({"worker": [f"localhost:{port}" for port in ports], "ps": ["localhost:1"]})
    with Server(spec, "worker", 0), Server(spec, "worker", 1):
        for place in (spec, spec.job("worker"), [spec.job("worker")], spec.job_tasks("worker")):
            assert total_at(place) == 12
        with pytest.raises(InvalidValueError, match="Expected one worker, found 2"):
            RemoteExecutor.connect(spec)


def test_the_definition_of_a_server_has_the_real_port_and_the_given_one_stays():
    given = ServerDef({"worker": ["localhost:0", "localhost:0"]}, "worker", 1)
    server = Server(given, start=False)
    assert server.server_def == given
    with server:
        port = port_of(server)
        assert server.server_def == ServerDef(
            {"worker": ["localhost:0", f"grpc://localhost:{port}"]}, "worker", 1, "grpc"
        )
    assert given == ServerDef({"worker": ["localhost:0", "localhost:0"]}, "worker", 1)


def test_a_known_port_is_told_before_the_start_and_any_free_one_is_not():
    assert Server({"worker": ["localhost:7000"]}, start=False).target == "grpc://localhost:7000"
    server = Server(LOCAL, start=False)
    with pytest.raises(ClosedError, match="The server has not been started; call start"):
        _ = server.target
    assert repr(server) == "<Server of task 0 of job 'worker', not started>"
    server.stop()


def test_a_local_server_is_the_only_task_of_its_cluster():
    with Server.create_local_server() as server:
        assert server.server_def.cluster.jobs == {"localhost": {0: server.target}}
        assert total_at(server.target) == 12
        assert total_at(ClusterSpec(server.server_def.cluster)) == 12
    unstarted = Server.create_local_server(ServerConfig(limits=ServiceLimits(max_sessions=1)), start=False)
    with pytest.raises(ClosedError):
        unstarted.join()
    unstarted.stop()


def test_membership_is_judged_before_anything_is_bound():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MembershipError, match="Expected the index of a task of job 'worker'"):
            Server({"worker": [address]}, "worker", 1)


def test_a_busy_port_is_an_error_of_the_start_with_the_reason():
    with Server(LOCAL) as first:
        cluster = {"worker": [f"localhost:{port_of(first)}"]}
        with pytest.raises(
            AddressError, match=f"Port {port_of(first)} of localhost is in use; stop the process that listens on it"
        ):
            Server(cluster)
        second = Server(cluster, start=False)
        with pytest.raises(OSError, match="is in use"):
            second.start()
        assert total_at(first.target) == 12
    with second:
        assert total_at(second.target) == 12


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no-such-host.invalid:0", "Expected a name or an address of this machine, found 'no-such-host.invalid'"),
        ("203.0.113.7:0", "Expected an address of this machine, found 203.0.113.7"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(address, message):
    with pytest.raises(AddressError, match=message):
        Server({"worker": [address]}, config=ServerConfig(insecure=True))


def other_address():
    """Returns an address of this machine beside 127.0.0.1 which nothing that listens there alone is reached at."""
    return "127.0.0.2"


def test_a_server_listens_at_the_host_that_is_named_and_nowhere_else():
    with Server({"worker": ["127.0.0.1:0"]}) as server:
        assert can_be_dialled("127.0.0.1", port_of(server))
        assert not can_be_dialled(other_address(), port_of(server))


def test_a_started_server_may_be_started_again_and_a_stopped_one_may_not():
    with Server(LOCAL) as server:
        target = server.target
        server.start()
        assert server.target == target
    with pytest.raises(ClosedError, match="This Server is closed"):
        server.start()
    with pytest.raises(ClosedError):
        server.__enter__()
    server.stop()


def test_join_tells_whether_the_server_has_stopped():
    server = Server(LOCAL, start=False)
    with pytest.raises(ClosedError, match="The server has not been started; call start"):
        server.join()
    server.start()
    assert server.join(0.01) is False
    found = []
    joining = threading.Thread(target=lambda: found.append(server.join(WALL)))
    joining.start()
    server.stop()
    joining.join()
    assert found == [True]
    assert server.join() is True
    assert server.join(0) is True
    with pytest.raises(InvalidValueError, match="Expected timeout of at least 0, and finite, found inf"):
        server.join(float("inf"))
    assert repr(server) == "<Server of task 0 of job 'worker', stopped>"


async def test_a_server_is_used_in_an_event_loop():
    async with Server(LOCAL, start=False) as server:
        assert await server.wait(0.01) is False
        async with RemoteExecutor.connect(server.target) as executor:
            executor.set_cardinalities({fl.CLIENTS: 0})
            assert await (await executor.create_value(3, np.int64)).compute() == 3
        waiting = asyncio.ensure_future(server.wait())
    assert await asyncio.wait_for(waiting, WALL) is True
    assert await server.wait(0) is True


def test_a_port_is_free_as_soon_as_its_server_has_stopped_with_clients_still_connected():
    cluster = {"worker": [f"localhost:{free_port()}"]}
    with fedstack.create_sync_remote_execution_context(ClusterSpec(cluster)) as context:
        for _ in range(3):
            server = Server(cluster)
            assert total([1, 2, 3]) == 12
            server.stop(grace=0)
        with Server(cluster):
            assert total([1, 2, 3]) == 12
    assert context


def test_a_server_that_nothing_refers_to_frees_its_port(caplog):
    server = Server(LOCAL)
    port, gone = port_of(server), threading.Event()
    grpc_server = server.server
    weakref.finalize(server, gone.set)
    del server
    gc.collect()
    assert gone.is_set()
    from fedstack.transport.peers.io_loop import io_loop

    io_loop.run_sync(grpc_server.wait(), WALL)
    assert "because it was garbage-collected; keep it in a variable" in caplog.text
    with Server({"worker": [f"localhost:{port}"]}) as again:
        assert port_of(again) == port


def test_a_unix_socket_is_an_address_too(tmp_path):
    path = tmp_path / "task.sock"
    with Server({"worker": [f"unix:{path}"]}) as server:
        assert server.target == f"unix:{path}"
        assert total_at(server.target) == 12
    assert not path.exists()


def test_a_task_listens_at_another_host_than_others_dial():
    config = ServerConfig(host="127.0.0.1")
    with Server({"worker": ["worker-0.example:0"]}, config=config) as server:
        port = int(server.target.rpartition(":")[2])
        assert server.target == f"grpc://worker-0.example:{port}"
        assert server.server_def.cluster.jobs == {"worker": {0: server.target}}
        assert total_at(f"127.0.0.1:{port}") == 12
    with pytest.raises(InvalidValueError, match="Expected TLS for an address that other machines can reach.*0.0.0.0"):
        Server({"worker": ["localhost:0"]}, config=ServerConfig(host="0.0.0.0"))


def test_more_services_are_served_beside_the_executor():
    echo = EchoService()
    with Server(LOCAL, config=ServerConfig(services=[echo])) as server:
        from calling import call

        assert call(server.target, "Unary", b"abc") == b"abc"
        assert total_at(server.target) == 12


def test_a_server_has_methods_for_whoever_may_use_it(files):
    served, client = mtls(files)
    with Server(LOCAL, config=ServerConfig(served)) as server:
        server.register("double", double)
        for place in (server.target, ClusterSpec(server.server_def.cluster)):
            with rpc.Client.create("grpc", place, credentials=client) as methods:
                assert methods.double_blocking(21) == 42


def mtls(files):
    served = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    client = ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )
    return served, client


def test_a_server_asks_for_certificates_and_tokens(files, tmp_path):
    (tmp_path / "tokens").write_text("one\ntwo\n")
    served, client = mtls(files)
    config = ServerConfig(credentials=served, token_file=tmp_path / "tokens")
    with Server(LOCAL, config=config) as server:
        assert server.target.startswith("grpcs://localhost:")
        known = ClientCredentials.from_files(
            root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key, token="two"
        )
        assert total_at(server.target, credentials=known) == 12
        assert total_at(ClusterSpec(server.server_def.cluster), credentials=known) == 12
        with pytest.raises(AuthenticationError, match="token"):
            total_at(server.target, credentials=client)
        with pytest.raises(fedstack.FedstackError):
            total_at(
                server.target, credentials=ClientCredentials(root_certificates=client.root_certificates, token="two")
            )


def test_tokens_are_in_the_credentials_or_in_a_file(tmp_path):
    (tmp_path / "tokens").write_text("one\n")
    with Server(LOCAL, config=ServerConfig(ServerCredentials(tokens=["two"]))) as server:
        assert total_at(server.target, credentials=ClientCredentials(token="two")) == 12
    with pytest.raises(InvalidValueError, match="Expected tokens in credentials or in token_file, found tokens"):
        Server(LOCAL, config=ServerConfig(ServerCredentials(tokens=["two"]), tmp_path / "tokens"))
    with pytest.raises(InvalidValueError, match="none"):
        Server(LOCAL, config=ServerConfig(token_file=tmp_path / "none"))
    with pytest.raises(InvalidValueError, match="of type fedstack.service.ServerCredentials, found ClientCredentials"):
        Server(LOCAL, config=ServerConfig(ClientCredentials(token="two")))


def test_tokens_of_a_file_are_renewed_beside_certificates(files, tmp_path):
    (tmp_path / "tokens").write_text("one\n")
    served, _ = mtls(files)
    both = ServerConfig(served, tmp_path / "tokens").all_credentials()
    assert both.tokens == ("one",)
    assert both.files is not None
    assert served.files is not None
    assert both.files.certificates is served.files.certificates
    assert both.files.tokens is not None


def test_the_scheme_of_an_address_and_the_certificate_agree(files):
    served, _ = mtls(files)
    with pytest.raises(
        InvalidValueError, match="Expected a certificate for a server at grpcs://localhost:0, found none"
    ):
        Server({"worker": ["grpcs://localhost:0"]})
    with pytest.raises(
        InvalidValueError, match="Expected no certificate for a server at grpc://localhost:0, found one"
    ):
        Server({"worker": ["grpc://localhost:0"]}, config=ServerConfig(served))


def test_other_machines_are_let_in_with_tls_only_and_to_run_code_with_certificates_only(files):
    named = {"worker": ["worker.example:8000"]}
    with pytest.raises(InvalidValueError, match="Expected TLS for an address that other machines can reach"):
        Server(named)
    runs_code = CarrierPolicy(python_code=True)
    server_only = ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)
    for config in (
        ServerConfig(insecure=True, policy=runs_code),
        ServerConfig(server_only, policy=runs_code),
        ServerConfig(server_only, services=[ExecutorService(fedstack.local_executor_factory(), policy=runs_code)]),
    ):
        with pytest.raises(InvalidValueError, match="would run arbitrary code for clients without certificates"):
            Server(named, config=config)
    served, _ = mtls(files)
    Server(named, config=ServerConfig(served, policy=runs_code), start=False).stop()
    Server({"worker": ["[::1]:0"]}, config=ServerConfig(policy=runs_code), start=False).stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": 3}, "Expected limits of type ServiceLimits, found int 3"),
        ({"policy": "all"}, "Expected policy of type CarrierPolicy, found str 'all'"),
        ({"services": [3]}, "Expected services of type Service, found int 3"),
        ({"services": 3}, r"Expected a list of services, found int 3; write \[service\] for"),
        ({"data_services": 3}, "Expected data_services to contain addresses of dispatchers, found int 3"),
        (
            {"data_services": ["localhost:1", None]},
            "Expected data_services to contain addresses of dispatchers, found None",
        ),
        ({"host": 3}, "Expected host of type str, found int 3"),
        ({"host": "127.0.0.1:80"}, "host to be a name or an address without a port, found '127.0.0.1:80'; specify"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_told_where_it_is_made(options, message):
    with pytest.raises(InvalidValueError, match=message):
        ServerConfig(**options)
    assert ServerConfig(host="::1").host == ServerConfig(host="[::1]").host == "::1"


def test_a_configuration_is_data():
    with pytest.raises(InvalidValueError, match="Expected config of type fedstack.service.ServerConfig, found dict"):
        Server(LOCAL, config={"insecure": True})
    config = ServerConfig(services=[])
    assert config.services == ()
    with pytest.raises(AttributeError):
        config.insecure = True
