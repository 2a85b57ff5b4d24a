"""Methods over TLS, with client certificates and with tokens: what may call, and what may not."""

import asyncio
import contextlib
import functools
import pickle
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from certificate_files import CertificateFiles
from served_methods import WALL, add

from fedstack.computations.leaves.function_pickles import dumps
from fedstack.errors import AuthenticationError, InvalidValueError, LeafError, RemoteError
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.service import ClusterSpec, Server, ServerConfig, rpc
from fedstack.service.coordinator import ClusterCoordinator
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials

MS = 1000 * WALL


def served(credentials: ServerCredentials) -> rpc.Server:
    server = rpc.Server.create("grpc", "localhost:0", credentials)
    server.register("add", add)
    return server


def ours(files: CertificateFiles, **kw: str) -> ClientCredentials:
    return ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key, **kw
    )


def test_methods_are_called_over_mutual_tls_with_a_token(files: CertificateFiles, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert,
        private_key=files.server_key,
        client_root_certificates=files.ca,
        token_file=tmp_path / "token",
    )
    with served(theirs) as server:
        good = ours(files, token_file=tmp_path / "token")
        with rpc.Client.create("grpc", server.target, credentials=good, timeout_in_ms=MS) as client:
            assert client.add_blocking(1, 2) == 3
            array = np.zeros(10, np.int32)
            assert client.call("add", [array[0], 2]).get_value() == 2
        for bad in (None, ours(files), ClientCredentials(root_certificates=files.ca.read_bytes(), token="secret")):
            with pytest.raises(AuthenticationError):
                rpc.Client.create("grpc", server.target, credentials=bad, timeout_in_ms=MS)


def test_a_wrong_token_is_an_error_at_once_and_not_waited_for():
    with served(ServerCredentials(tokens=("secret",))) as server:
        with pytest.raises(AuthenticationError, match="it does not accept the token"):
            rpc.Client.create("grpc", server.target, credentials=ClientCredentials(token="guess"))
        with rpc.Client.create(
            "grpc", server.target, list_registered_methods=False, credentials=ClientCredentials(token="guess")
        ) as client:
            assert client.call("add", [1, 2]).get_error()[0] == rpc.Code.UNAUTHENTICATED


@contextlib.contextmanager
def server_that_calls_with(credentials: ClientCredentials | None, kind: str) -> Iterator[rpc.Server | Server]:
    if kind == "a task of a cluster":
        with Server({"worker": ["localhost:0"]}, config=ServerConfig(client_credentials=credentials)) as task:
            yield task
    else:
        with rpc.Server.create("grpc", "localhost:0", client_credentials=credentials) as server:
            yield server


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a server of methods", "a task of a cluster"])
def test_what_a_method_calls_it_calls_with_the_servers_own_credentials(files: CertificateFiles, kind: str):
    """A variable is read over TLS with a token that neither the caller of the method nor the method itself has."""
    theirs = ServerCredentials(
        certificate=files.server_cert.read_bytes(),
        private_key=files.server_key.read_bytes(),
        client_root_certificates=files.ca.read_bytes(),
        tokens=("of-methods", "of-coordinator"),
    )
    with (
        Server({"ps": ["localhost:0"]}, config=ServerConfig(credentials=theirs)) as keeps,
        Server({"worker": ["localhost:0"]}, config=ServerConfig(credentials=theirs)) as worker,
        ClusterCoordinator(
            ClusterSpec({"worker": [worker.target], "ps": [keeps.target]}).job("worker"),
            ours(files, token="of-coordinator"),
        ) as coordinator,
    ):
        handle = dumps(coordinator.variable(1))

        def total() -> int:
            return pickle.loads(handle).read_value()

        for credentials in (ours(files, token="of-methods"), None):
            with server_that_calls_with(credentials, kind) as server:
                server.register("total", total, parameter_types=[], result_type=np.int32)
                with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as client:
                    if credentials is not None:
                        assert client.total_blocking() == 1
                        continue
                    with pytest.raises(
                        LeafError,
                        match="AuthenticationError: .*--call-ca on the worker .ServerConfig.client_credentials",
                    ):
                        client.total_blocking()


@pytest.mark.parametrize("make", [rpc.MethodService, functools.partial(rpc.Server.create, "grpc", "localhost:0")])
def test_what_methods_call_with_is_credentials_of_a_client(make):
    with pytest.raises(
        InvalidValueError, match="Expected client_credentials to be a fedstack.ClientCredentials, found Server"
    ):
        make(client_credentials=ServerCredentials())


def test_credentials_of_another_kind_are_refused():
    with pytest.raises(InvalidValueError, match="Expected credentials of type fedstack.ClientCredentials"):
        rpc.Client.create("grpc", "localhost:1", credentials="secret")  # type: ignore[arg-type]


def test_a_server_of_methods_runs_nothing_but_methods():
    """A client may call what is registered: no executor service would take computations of its own."""
    with served(ServerCredentials()) as server, RemoteExecutor.connect(server.target) as executor:
        executor.set_cardinalities({fl.CLIENTS: 0})

        async def compute() -> None:
            await (await executor.create_value(1, fl.TensorType(np.int32))).compute()

        with pytest.raises(RemoteError, match="found a gRPC server without this service"):
            asyncio.run(compute())
