"""`fedstack serve --cluster`: a process is the task that it is told, and listens where the cluster has that."""

import json
from pathlib import Path
from types import SimpleNamespace

import click
import federated_language as fl
import numpy as np
import pytest
from calling import WALL
from serving import served

import fedstack
from fedstack.command_line import serve_command
from fedstack.command_line.certificates import CertificateFiles
from fedstack.command_line.command import options_of as options_in
from fedstack.command_line.make_server import listens_at, task_in
from fedstack.service import ClusterSpec, wait_for_addresses
from fedstack.transport.grpc.credentials import ClientCredentials

TOML = """
[cluster]
worker = ["localhost:0", "localhost:0"]
ps = ["localhost:7010"]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    return path


def options_of(*arguments: object) -> SimpleNamespace:
    return options_in(serve_command.COMMAND.make_context("serve", list(map(str, arguments))))


def test_a_task_listens_where_its_cluster_says(cluster: Path, tmp_path: Path) -> None:
    options = options_of("--cluster", cluster, "--job", "ps")
    task = task_in(options)
    assert listens_at(options, task).address == "localhost:7010"
    assert str(task) == "task 0 of job 'ps'"
    inline = options_of(
        "--cluster", f'{{"cluster": {{"worker": ["unix:{tmp_path}/w.sock", "[::1]:7011"]}}}}', "--task", 0
    )
    assert listens_at(inline, task_in(inline)).socket_path == f"{tmp_path}/w.sock"
    line = serve_command.ready_line("localhost:7010", options, task)
    assert line.endswith("serving on localhost:7010 (insecure, loopback only, task 0 of job 'ps'); python code refused")


def test_without_a_cluster_there_is_no_task() -> None:
    assert task_in(options_of("--port", "1")) is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--job", "worker"], "Cannot use --job without --cluster; add --cluster"),
        (["--task", "1", "--addresses", "a"], "Cannot use --task and --addresses without --cluster"),
        (["--cluster", TOML], "Expected --job for a cluster with 2 jobs"),
        (["--cluster", TOML, "--job", "worker"], "Expected --task for job 'worker' with 2 tasks"),
        (["--cluster", TOML, "--job", "worker", "--task", "2"], "Expected the index of a task of job 'worker'"),
        (["--cluster", TOML, "--job", "chief", "--task", "0"], "Expected a job of the cluster"),
        (["--cluster", "none.toml"], "a cluster in the file none.toml: No such file or directory"),
        (["--cluster", '{"cluster": {"worker": [""]}}'], "or unix:/path (in the text)"),
        (
            ["--cluster", '{"cluster": {"worker": ["grpcs://a:1"]}}'],
            "Expected a certificate for a server at grpcs://a:1",
        ),
        (["--cluster", TOML, "--task", "-1"], "expected a whole number of at least 0, found '-1'"),
    ],
)
def test_what_names_no_task_is_wrong_usage(arguments: list[str], complaint: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        task_in(options_of(*arguments))
    assert complaint in caught.value.format_message()


@pytest.mark.parametrize("other", [["--port", "1"], ["--unix-socket", "s"]])
def test_a_cluster_and_an_address_are_wrong_usage(other: list[str]) -> None:
    message = f"found --cluster and {other[0]}; remove all but one"
    with pytest.raises(click.UsageError, match=message):
        serve_command.make_server(options_of("--cluster", TOML, "--job", "ps", *other))


def test_a_task_may_listen_at_another_host_than_others_dial(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of("--cluster", cluster, "--job", "ps", "--host", "::1")
    task = task_in(options)
    assert task is not None
    assert listens_at(options, task).address == "[::1]:7010"
    assert task.target() == f"grpc://{task.address}"
    serve_command.make_server(options)
    monkeypatch.setenv("FEDSTACK_HOST", "127.0.0.1")
    options = options_of("--cluster", cluster, "--job", "ps")
    assert listens_at(options, task_in(options)).host == "127.0.0.1"


def test_variables_name_a_task_and_clash_as_options_do(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTACK_PORT", "1")
    serve_command.make_server(options_of("--cluster", cluster, "--job", "ps"))  # what is on the command line wins
    monkeypatch.setenv("FEDSTACK_CLUSTER", str(cluster))
    with pytest.raises(click.UsageError, match="found FEDSTACK_CLUSTER and FEDSTACK_PORT; remove all but one"):
        serve_command.make_server(options_of())
    monkeypatch.delenv("FEDSTACK_PORT")
    monkeypatch.setenv("FEDSTACK_JOB", "worker")
    monkeypatch.setenv("FEDSTACK_TASK", "1")
    assert str(task_in(options_of())) == "task 1 of job 'worker'"
    monkeypatch.delenv("FEDSTACK_CLUSTER")
    assert task_in(options_of()) is None  # they are meant for another command


@pytest.mark.long
def test_processes_at_any_port_make_a_cluster(cluster: Path, tmp_path: Path) -> None:
    double = fedstack.python_computation(np.int64, np.int64)(lambda x: x * 2)
    at_clients = fl.FederatedType(np.int64, fl.CLIENTS)
    total = fl.federated_computation(lambda xs: fl.federated_sum(fl.federated_map(double, xs)), at_clients)
    (tmp_path / "token").write_text("secret")
    addresses = tmp_path / "addresses"
    options = ["--cluster", cluster, "--job", "worker", "--addresses", addresses, "--allow-python-code"]
    options += ["--token-file", tmp_path / "token", "--log-format", "json"]
    with served(*options, "--task", 1), served(*options, "--task", 0) as server:
        assert "task 0 of job 'worker'" in json.loads(server.line)["message"]
        spec = wait_for_addresses(ClusterSpec.from_file(cluster), addresses, WALL)
        assert spec.task_address("worker", 0) == f"grpc://{server.target}"
        with fedstack.create_sync_remote_execution_context(spec, credentials=ClientCredentials(token="secret")):
            assert total([1, 2, 3]) == 12


def test_a_task_over_tls_says_so_in_its_address(files: CertificateFiles, tmp_path: Path) -> None:
    cluster, addresses = '{"cluster": {"worker": ["grpcs://localhost:0"]}}', tmp_path / "addresses"
    tls = ["--tls-cert", files.server_cert, "--tls-key", files.server_key, "--tls-client-ca", files.ca]
    known = ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )
    mean = fl.federated_computation(lambda xs: fl.federated_mean(xs), fl.FederatedType(np.float64, fl.CLIENTS))
    with served("--cluster", cluster, "--addresses", addresses, *tls) as server:
        spec = wait_for_addresses(ClusterSpec.from_text(cluster), addresses, WALL)
        assert spec == {"worker": [f"grpcs://{server.target}"]}
        with fedstack.create_sync_remote_execution_context(spec, credentials=known):
            assert mean([1.0, 3.0]) == 2.0
