"""Contexts over workers that cannot be used: what they say of each, and how soon."""

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import pytest
from calling import on_loop
from certificate_files import CertificateFiles
from echo_service import EchoService

import fedstack
from fedstack import errors
from fedstack.executors.factories import local_executor_factory
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.status import Code, error_from_status

pytestmark = pytest.mark.slow

# What a slow machine may add; without an early end the whole time to connect would pass.
SOON, CONNECT_SECONDS = 20.0, 30.0
CLOSED_POOL = "The worker pool is closed"


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total(values: Any) -> Any:
    return fl.federated_sum(values)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and nobody else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def serving(credentials: ServerCredentials | None = None) -> ServerThread:
    return ServerThread(GrpcServer([ExecutorService(local_executor_factory())], credentials=credentials))


def of_server(files: CertificateFiles, *, mutual: bool = False) -> ServerCredentials:
    return ServerCredentials.from_files(
        certificate=files.server_cert,
        private_key=files.server_key,
        client_root_certificates=files.ca if mutual else None,
    )


def of_client(files: CertificateFiles) -> ClientCredentials:
    return ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )


def failure(targets: Any, credentials: ClientCredentials | None = None, **options: Any) -> errors.FedstackError:
    """Returns the error of a computation over workers that cannot be used."""
    context = fedstack.create_sync_remote_execution_context(targets, credentials=credentials, **options)
    try:
        with fedstack.use_context(context), pytest.raises(errors.FedstackError) as caught:
            total([1, 2, 3])
        return caught.value
    finally:
        context.close()


Case = tuple[ServerCredentials | None, ClientCredentials | None, str]
CASES: dict[str, Callable[[CertificateFiles, CertificateFiles], Case]] = {
    "TLS asked of plaintext": lambda files, others: (None, of_client(files), "it does not use TLS, but was dialed"),
    "plaintext asked of TLS": lambda files, others: (of_server(files), None, "it uses TLS, but was dialed without"),
    "another name": lambda files, others: (
        of_server(others),
        of_client(others),
        "its certificate is valid for other names only",
    ),
    "untrusted": lambda files, others: (
        of_server(files),
        of_client(others),
        "its certificate is not from a trusted auth",
    ),
    "no token": lambda files, others: (ServerCredentials(tokens=("a",)), None, "it requires a token"),
    "wrong token": lambda files, others: (
        attrs.evolve(of_server(files, mutual=True), tokens=("a",)),
        attrs.evolve(of_client(files), token="b"),
        "it does not accept the token",
    ),
    "no certificate": lambda files, others: (
        of_server(files, mutual=True),
        ClientCredentials.from_files(root_certificates=files.ca),
        "it requires a client certificate",
    ),
    "wrong certificate": lambda files, others: (
        of_server(files, mutual=True),
        attrs.evolve(of_client(others), root_certificates=files.ca.read_bytes()),
        "it does not accept the client certificate",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_does_not_become_right_by_waiting_is_said_at_once(
    case: Callable[[CertificateFiles, CertificateFiles], Case], files: CertificateFiles, others: CertificateFiles
) -> None:
    of_the_server, of_ours, expected = case(files, others)
    with serving(of_the_server) as thread:
        begun = time.monotonic()
        found = failure(thread.target, of_ours, connect_seconds=CONNECT_SECONDS)
        assert time.monotonic() - begun < SOON
        assert isinstance(found, errors.AuthenticationError)
        assert str(found).startswith(f"Cannot use the server at {thread.target}: {expected}")
        assert str(found).endswith(found.causes[thread.target])


def test_a_key_of_another_certificate_is_noticed_before_anybody_is_dialled(
    files: CertificateFiles, others: CertificateFiles, nobody: str
) -> None:
    credentials = attrs.evolve(of_client(files), private_key=others.client_key.read_bytes())
    begun = time.monotonic()
    found = failure(nobody, credentials, connect_seconds=CONNECT_SECONDS)
    assert time.monotonic() - begun < SOON
    assert isinstance(found, errors.InvalidValueError)
    assert "found the key of another certificate" in str(found)


@pytest.mark.long
def test_of_each_worker_that_is_away_there_is_a_line_with_its_address_and_why(
    nobody: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving(ServerCredentials(tokens=("a",))) as refusing:
        targets = [nobody, f"unix:{tmp_path / 'none'}", "no-such-host.invalid:1", refusing.target]
        begun = time.monotonic()
        found = failure(targets, connect_seconds=3)
        assert time.monotonic() - begun < 3 + 2 + SOON
    assert isinstance(found, errors.NoWorkersError)
    head, *lines = str(found).splitlines()
    assert (
        head == "None of the 4 workers is ready; start them with `fedstack serve`, and test one with `fedstack check`:"
    )
    assert [line.split(": ")[0].strip() for line in lines] == targets
    assert lines[0] == f"  {nobody}: no server is listening (connection refused)"
    assert lines[1] == f"  {targets[1]}: the socket does not exist"
    assert lines[2].startswith(f"  {targets[2]}: the host name cannot be resolved")
    assert lines[3] == f"  {refusing.target}: it requires a token; pass ClientCredentials(token=...)"
    assert list(found.causes) == targets
    retries = [r for r in caplog.records if r.getMessage().startswith("Retrying a computation")]
    assert [r.getMessage().endswith("the same error") for r in retries] == [False, True, True, True]
    assert [r.levelname for r in retries] == ["WARNING", "INFO", "INFO", "INFO"], "nothing has changed, so no warning"


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_one_worker_that_is_away_is_not_spoken_of_as_several(times: int, nobody: str) -> None:
    found = failure([nobody] * times, connect_seconds=3, retry_policy=fedstack.RetryPolicy.none())
    assert str(found) == (
        "The worker is not ready; start it with `fedstack serve`, and test it with "
        f"`fedstack check`:\n  {nobody}: no server is listening (connection refused)"
    )


def test_a_worker_that_does_not_answer_is_a_line_that_names_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_vain(stub: ExecutorStub) -> None:
        raise error_from_status(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", None, stub.address)

    monkeypatch.setattr(ExecutorStub, "handshake", in_vain)
    with serving() as thread:
        found = failure(thread.target, connect_seconds=0.5, retry_policy=fedstack.RetryPolicy.none())
        assert found.causes == {thread.target: "it does not answer"}
        assert str(found).splitlines()[1:] == [f"  {thread.target}: it does not answer"]


def test_a_server_without_executors_is_said_to_be_one() -> None:
    async def make() -> EchoService:
        return EchoService()

    with ServerThread(GrpcServer([on_loop(make)])) as thread:
        found = failure(thread.target, connect_seconds=CONNECT_SECONDS)
        assert isinstance(found, errors.RemoteError)
        expected = f"Expected an executor service at {thread.target}, found a gRPC server without this service "
        assert str(found).startswith(f"{expected}(UNIMPLEMENTED: ")
        assert str(found).endswith("); correct the host and port")


def test_a_pool_that_is_closed_is_noticed_at_once() -> None:
    with local_worker_pool(1) as pool:
        context = fedstack.create_sync_remote_execution_context(pool, connect_seconds=CONNECT_SECONDS)
        assert "not contacted yet" in repr(context)
    begun = time.monotonic()
    with context, fedstack.use_context(context), pytest.raises(errors.ClosedError, match=CLOSED_POOL):
        total([1, 2])
    assert time.monotonic() - begun < SOON
    with pytest.raises(errors.ClosedError, match=CLOSED_POOL):
        fedstack.create_sync_remote_execution_context(pool)


@pytest.mark.long
def test_worker_processes_that_have_ended_are_noticed_at_once_with_their_codes() -> None:
    with local_worker_pool(2, respawn=False) as pool:
        for worker in pool._workers:
            worker.process.kill()
            worker.process.wait()
        begun = time.monotonic()
        found = failure(pool, connect_seconds=CONNECT_SECONDS)
        assert time.monotonic() - begun < SOON
        assert isinstance(found, errors.NoWorkersError)
        assert str(found).startswith("All 2 worker processes have ended")
        assert found.is_final
        ending = "signal 9 (SIGKILL)" if sys.platform != "win32" else "exit status 1"
        for pid, target in zip(pool.pids, pool.targets):
            assert f"\n  {target}: the worker process with pid {pid} ended with {ending}" in str(found)


def of_a_function_that_ends_workers() -> Any:
    @fedstack.python_computation(np.int32, np.int32)
    def die(value: int) -> int:
        import os

        os._exit(7)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def dying(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(die, values))

    return dying


@pytest.mark.long
def test_a_function_that_has_ended_all_workers_of_a_pool_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dying = of_a_function_that_ends_workers()
    with local_worker_pool(2, respawn=False) as pool:
        context = fedstack.create_sync_remote_execution_context(pool, retry_policy=fedstack.RetryPolicy(attempts=50))
        with context, fedstack.use_context(context), pytest.raises(errors.NoWorkersError) as caught:
            dying([1, 2])
    head, *lines, told = str(caught.value).splitlines()
    assert "likely because of a client function (os._exit, a crash, or lack of memory)" in head
    assert lines == [
        f"  {target}: the worker process with pid {pid} ended with exit status 7"
        for target, pid in zip(pool.targets, pool.pids)
    ]
    retries = [r.getMessage() for r in caplog.records if " again" in r.getMessage()]
    assert 1 <= len(retries) <= 3
    assert told.startswith("  these clients ran on ")
    assert "client" in told


def test_workers_lost_at_the_last_attempt_are_listed_with_why() -> None:
    dying = of_a_function_that_ends_workers()
    with local_worker_pool(1, respawn=False) as pool:
        context = fedstack.create_sync_remote_execution_context(pool, retry_policy=fedstack.RetryPolicy.none())
        try:
            with fedstack.use_context(context):
                assert total([1, 2]) == 3
                with pytest.raises(errors.LostWorkersError) as caught:
                    dying([1, 2])
        finally:
            context.close()
    head, line, told = str(caught.value).splitlines()
    assert (
        head == "The computation lost workers in every attempt (limit: 1 attempt); test a worker with `fedstack check`:"
    )
    assert line in (
        f"  {pool.targets[0]}: the connection was lost",
        f"  {pool.targets[0]}: the worker process with pid {pool.pids[0]} ended with exit status 7",
    )
    assert told == "  these clients ran on a worker that ended: clients 0 to 1"
    assert list(caught.value.causes) == list(pool.targets)
