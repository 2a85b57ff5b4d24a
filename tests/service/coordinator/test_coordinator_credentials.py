"""A coordinator, its workers and its variables over TLS, with client certificates and with tokens."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificate_files import CertificateFiles
from serving import served

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.function_pickles import dumps
from fedstack.computations.types.language import infer_type
from fedstack.errors import FedstackError, InvalidValueError, LeafError
from fedstack.service import ClusterSpec, Server, ServerConfig
from fedstack.service.coordinator import ClusterCoordinator, variables
from fedstack.service.coordinator.variables import Variable, VariableHandle
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.wire.addresses import Target

WALL = 60
# One token for the workers, another for those that hold variables: what a worker was called with is of no use there.
WORKERS, VARIABLES = "of-workers", "of-variables"


def add_one(counter) -> None:
    counter.assign_add(1)


def ours(files: CertificateFiles, token: str | None) -> ClientCredentials:
    return ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key, token=token
    )


def theirs(files: CertificateFiles, *tokens: str) -> ServerCredentials:
    return ServerCredentials(
        certificate=files.server_cert.read_bytes(),
        private_key=files.server_key.read_bytes(),
        client_root_certificates=files.ca.read_bytes(),
        tokens=tokens,
    )


@contextlib.contextmanager
def cluster(
    files: CertificateFiles, client_credentials: ClientCredentials | None, holds: bool = True
) -> Iterator[ClusterCoordinator]:
    """Serves a worker, and a task of job `ps`; the coordinator may call both, with a token of its own."""
    serves = ServerConfig(
        credentials=theirs(files, WORKERS, "of-coordinator"),
        policy=CarrierPolicy(python_code=True),
        client_credentials=client_credentials,
    )
    keeps = ServerConfig(credentials=theirs(files, VARIABLES, "of-coordinator"))
    with Server({"worker": ["localhost:0"]}, config=serves) as worker, contextlib.ExitStack() as stack:
        jobs = {"worker": [worker.target]}
        if holds:
            jobs["ps"] = [stack.enter_context(Server({"ps": ["localhost:0"]}, config=keeps)).target]
        with ClusterCoordinator(ClusterSpec(jobs).job("worker"), ours(files, "of-coordinator")) as coordinator:
            yield coordinator


def test_calls_are_scheduled_joined_and_fetched_over_mutual_tls_with_a_token(files: CertificateFiles) -> None:
    with cluster(files, None) as coordinator:
        first = coordinator.schedule(lambda x: x + 1, (1,))
        second = coordinator.schedule(lambda x: x * 10, (first,))
        coordinator.join(WALL)
        assert coordinator.fetch([first, second], WALL) == [2, 20]


@pytest.mark.parametrize("token", [None, "guess"])
def test_a_coordinator_with_no_token_or_a_wrong_one_says_what_to_give(
    files: CertificateFiles, token: str | None
) -> None:
    config = ServerConfig(credentials=theirs(files, WORKERS), policy=CarrierPolicy(python_code=True))
    with Server({"worker": ["localhost:0"]}, config=config) as worker:
        with ClusterCoordinator(worker.target, ours(files, token)) as coordinator:
            value = coordinator.schedule(lambda: 1)
            with pytest.raises(FedstackError, match=r"token; pass (the correct )?ClientCredentials\(token=\.\.\.\)"):
                coordinator.join(WALL)
            with pytest.raises(FedstackError, match="token"):
                value.fetch(WALL)


@pytest.mark.long
def test_a_variable_is_used_outside_and_inside_functions_with_the_workers_own_credentials(
    files: CertificateFiles,
) -> None:
    with cluster(files, ours(files, VARIABLES)) as coordinator:
        total = coordinator.variable(1)

        def captured() -> int:
            total.assign_add(2)
            return total.read_value()

        def argument(counter) -> None:
            counter.assign_sub(10)

        total.assign_add(100)
        assert coordinator.schedule(captured).fetch(WALL) == 103
        coordinator.schedule(argument, (total,))
        coordinator.join(WALL)
        assert total.read_value() == 93


@pytest.mark.long
@pytest.mark.parametrize(
    ("token", "message"),
    [
        (WORKERS, "it does not accept the token; pass the correct --call-token-file on the worker"),
        (None, "it requires a token; pass --call-token-file on the worker"),
    ],
)
def test_a_worker_with_the_wrong_token_says_what_to_give(
    files: CertificateFiles, token: str | None, message: str
) -> None:
    with cluster(files, ours(files, token)) as coordinator:
        total = coordinator.variable(1)
        coordinator.schedule(add_one, (total,))
        with pytest.raises(FedstackError, match=message):
            coordinator.join(WALL)
        assert total.read_value() == 1


@pytest.mark.long
def test_a_worker_calls_with_nothing_unless_it_is_given_something(files: CertificateFiles) -> None:
    with cluster(files, None) as coordinator:
        total = coordinator.variable(1)
        coordinator.schedule(add_one, (total,))
        with pytest.raises(FedstackError, match="pass (the correct )?--call-ca") as caught:
            coordinator.join(WALL)
        assert "client_credentials" in str(caught.value)


def test_a_variable_of_the_coordinator_itself_is_dialled_without_credentials(files: CertificateFiles) -> None:
    with cluster(files, ours(files, VARIABLES), holds=False) as coordinator:
        total = coordinator.variable(1)
        coordinator.schedule(add_one, (total,))
        coordinator.join(WALL)
        assert total.read_value() == 2


@pytest.mark.long
def test_a_handle_has_no_credentials(files: CertificateFiles) -> None:
    with cluster(files, ours(files, VARIABLES)) as coordinator:
        written = dumps(coordinator.variable(1))
    assert b"localhost" in written
    for secret in (b"of-coordinator", VARIABLES.encode(), b"PRIVATE KEY", b"CERTIFICATE"):
        assert secret not in written


@pytest.mark.long
def test_a_missing_certificate_of_the_worker_is_named(files: CertificateFiles) -> None:
    with cluster(files, ClientCredentials(root_certificates=files.ca.read_bytes(), token=VARIABLES)) as coordinator:
        coordinator.schedule(add_one, (coordinator.variable(1),))
        with pytest.raises(FedstackError, match="pass --call-cert and --call-key on the worker"):
            coordinator.join(WALL)


@pytest.mark.long
def test_a_variable_that_only_the_coordinators_machine_reaches_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "_CONNECT_SECONDS", 0.2)
    held = VariableHandle(Target("127.0.0.1:1", False), "session", "value", infer_type(1), True)
    with pytest.raises(
        FedstackError, match="only workers on the same machine can reach; .* add to the cluster a job 'ps'"
    ):
        Variable(held, variables.server_of(held)).read_value()


@pytest.mark.long
def test_a_server_of_variables_that_is_away_is_no_lost_worker(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variables, "_CONNECT_SECONDS", 0.2)
    held = VariableHandle(Target("127.0.0.1:1", False), "session", "value", infer_type(1), False)
    away = Variable(held, variables.server_of(held))
    with cluster(files, None) as coordinator:
        coordinator.schedule(add_one, (away,))
        with pytest.raises(LeafError, match="'add_one' raised WorkerUnavailableError: Cannot use the server at 127"):
            coordinator.join(WALL)


@pytest.mark.long
def test_a_served_worker_takes_what_it_calls_with_from_options(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "workers").write_text(WORKERS)
    (tmp_path / "variables").write_text(VARIABLES)
    options = ["--allow-python-code", "--tls-cert", files.server_cert, "--tls-key", files.server_key]
    options += ["--tls-client-ca", files.ca, "--token-file", tmp_path / "workers"]
    options += ["--call-ca", files.ca, "--call-cert", files.client_cert, "--call-key", files.client_key]
    keeps = ServerConfig(credentials=theirs(files, VARIABLES, WORKERS))
    environment = {"FEDSTACK_CALL_TOKEN_FILE": str(tmp_path / "variables")}
    with served(*options, environment=environment) as worker, Server({"ps": ["localhost:0"]}, config=keeps) as ps:
        spec = ClusterSpec({"worker": [worker.target], "ps": [ps.target]})
        with ClusterCoordinator(spec.job("worker"), ours(files, WORKERS)) as coordinator:
            total = coordinator.variable(1)

            def captured():
                total.assign_add(2)
                return total.read_value()

            assert coordinator.schedule(captured).fetch(WALL) == 3
            coordinator.schedule(lambda counter: counter.assign_add(10), (total,))
            coordinator.join(WALL)
            assert total.read_value() == 13


def test_what_is_no_credentials_of_a_client_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match="Expected client_credentials to be a fedstack.ClientCredentials, found Server"
    ):
        ServerConfig(client_credentials=ServerCredentials())  # type: ignore[arg-type]
