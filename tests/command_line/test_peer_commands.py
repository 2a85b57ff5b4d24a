"""`fedstack check` and `fedstack status`, run against real servers of this process."""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from calling import WALL, call, on_loop
from certificate_files import CertificateFiles, write_certificates
from echo_service import EchoService
from free_ports import free_port
from freezing import freeze
from out_of_time import slowness
from serving import served

import fedstack
from fedstack.__main__ import main
from fedstack.command_line import status_command
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.proto.executor_pb2 import Cardinality
from fedstack.proto.extensions_pb2 import GetStatusResponse, OpenSessionRequest
from fedstack.service import Server, ServerConfig, rpc
from fedstack.service.data import DispatchServer, WorkerServer
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host import status
from fedstack.service.host.calls.call_table import CallCounts
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits, ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.host.status import StallCounts, StatusService
from fedstack.testing.meeting import until_set
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import Method, ServerFacts, UnaryMethod
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.status import Code, StatusError

pytestmark = pytest.mark.slow


def new_server(credentials: ServerCredentials | None = None, unix_socket: Path | None = None) -> ServerThread:
    service = ExecutorService(local_executor_factory(), policy=CarrierPolicy(modules=("numpy",)))
    return ServerThread(GrpcServer([service], credentials=credentials, unix_socket=unix_socket))


@pytest.fixture(autouse=True)
def no_stall_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what a slow machine brings about out of what servers say of themselves."""
    monkeypatch.setattr(status, "STALL_SECONDS", math.inf)


@pytest.fixture
def target() -> Iterator[str]:
    with new_server() as thread:
        yield thread.target


def tls(files: CertificateFiles, *, mutual: bool = False, tokens: tuple[str, ...] = ()) -> ServerCredentials:
    return ServerCredentials(
        certificate=files.server_cert.read_bytes(),
        private_key=files.server_key.read_bytes(),
        client_root_certificates=files.ca.read_bytes() if mutual else None,
        tokens=tokens,
    )


def test_check_says_what_a_server_is(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, *rows = out.splitlines()
    assert first.startswith(f"{target} is up: fedstack {fedstack.__version__}, Python 3.")
    found = dict(re.split(r"  +", row.strip(), maxsplit=1) for row in rows)
    assert found.pop("round trip").endswith(" ms")
    assert "PythonReference" in found.pop("leaf runtimes")
    assert found == {
        "encryption": "none",
        "token": "none",
        "transport": "streams",
        "allowed modules": "numpy",
        "largest value": "16 GiB",
    }


def test_check_says_which_allowed_modules_are_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    config = ServerConfig(policy=CarrierPolicy(["numpy", "no_such_module", "numpy.nothing"]))
    with Server.create_local_server(config) as server:
        assert main(["check", server.target]) == 0
    found = "numpy, no_such_module (not installed there), numpy.nothing (not installed there)"
    assert found in capsys.readouterr().out


def test_check_can_print_json(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["target"], found["version"]) == (True, target, fedstack.__version__)
    assert 0 < found["round_trip_ms"] < 10_000


def test_check_uses_all_that_a_server_may_ask_for(
    files: CertificateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    options = ["--tls-ca", files.ca, "--tls-cert", files.client_cert, "--tls-key", files.client_key]
    options += ["--token-file", token_file]
    with new_server(tls(files, mutual=True, tokens=("secret",))) as thread:
        assert main(["check", thread.target, *map(str, options), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["encryption"], found["token"]) == ("TLS, with client certificate", "accepted")


def test_check_says_how_long_the_certificate_is_valid_and_warns_if_that_is_not_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for days, warning in ((1, "The server's certificate ends soon; renew it.\n"), (30, "")):
        certs = tmp_path / str(days)
        assert main(["certs", str(certs), "--days", str(days)]) == 0
        capsys.readouterr()
        credentials = ServerCredentials.from_files(certificate=certs / "server.pem", private_key=certs / "server.key")
        with new_server(credentials) as thread:
            assert main(["check", thread.target, "--tls-ca", str(certs / "ca.pem")]) == 0
        out, err = capsys.readouterr()
        assert re.search(r"\n  certificate +valid until 20\d\d-\d\d-\d\d \d\d:\d\d UTC\n", out)
        assert err == warning


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_check_reaches_a_unix_socket_and_says_when_its_server_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "socket"
    with new_server(unix_socket=path):
        assert main(["check", f"unix:{path}"]) == 0
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert main(["check", f"unix:{path}"]) == 1
    assert (
        "no server is listening, and the socket is left over from an earlier server; restart the server"
        in capsys.readouterr().err
    )


def complaint(capsys: pytest.CaptureFixture[str], target: str, *options: object) -> str:
    """Checks a server that cannot be used; returns the reason given, which is one line."""
    assert main(["check", target, *map(str, options)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("fedstack check: error: ").rstrip()


CA = "--tls-ca {files.ca}"
OURS = CA + " --tls-cert {files.client_cert} --tls-key {files.client_key}"
STRANGERS = CA + " --tls-cert {others.client_cert} --tls-key {others.client_key}"
EXPIRED = CA + " --tls-cert {expired.client_cert} --tls-key {expired.client_key}"
RIGHT, WRONG = " --token-file {folder}/right", " --token-file {folder}/wrong"
NO_TLS = "it does not use TLS, but was dialed with TLS; dial grpc://{target} without the TLS options"
# What serves, how it is checked, and what is wrong then.
FAULTS = [
    ("plain", CA, NO_TLS),
    ("TLS", "", "it uses TLS, but was dialed without TLS; pass the certificate of its authority with --tls-ca"),
    ("TLS", "--tls-ca {others.ca}", "its certificate is not from a trusted authority (unable to get local"),
    (
        "TLS of another name",
        "--tls-ca {others.ca}",
        "its certificate is valid for other names only (IP address mismatch",
    ),
    (
        "TLS that expired",
        "--tls-ca {expired.ca}",
        "its certificate or the certificate of its authority is not valid today (cert",
    ),
    ("mutual TLS", CA, "it requires a client certificate; pass --tls-cert and --tls-key"),
    (
        "mutual TLS",
        STRANGERS,
        "it does not accept the client certificate; use --tls-cert and --tls-key to pass a certificate from an "
        "authority that the server trusts",
    ),
    ("mutual TLS", EXPIRED, "it does not accept the client certificate (it expired on "),
    ("token", "", "it requires a token; pass --token-file"),
    ("token", WRONG, "it does not accept the token; pass the correct --token-file"),
    ("mutual TLS and token", OURS, "it requires a token"),
    ("mutual TLS and token", OURS + WRONG, "it does not accept the token"),
    ("mutual TLS and token", CA + RIGHT, "it requires a client certificate"),
    ("mutual TLS and token", STRANGERS + RIGHT, "it does not accept the client certificate"),
]


@pytest.mark.parametrize(("kind", "options", "expected"), FAULTS)
def test_check_says_what_is_wrong_with_credentials_and_what_to_do(
    kind: str,
    options: str,
    expected: str,
    files: CertificateFiles,
    others: CertificateFiles,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expired = write_certificates(tmp_path / "expired", expired=True)
    (tmp_path / "right").write_text("secret")
    (tmp_path / "wrong").write_text("guess")
    shown = expired if "expired" in kind else others if "another" in kind else files
    secure, tokens = "TLS" in kind, ("secret",) if "token" in kind else ()
    credentials = tls(shown, mutual="mutual" in kind, tokens=tokens) if secure else ServerCredentials(tokens=tokens)
    with new_server(credentials) as thread:
        given = options.format(files=files, others=others, expired=expired, folder=tmp_path).split()
        found = complaint(capsys, thread.target, *given)
        assert found.startswith(f"Cannot use the server at {thread.target}: {expected.format(target=thread.target)}")


def test_a_server_is_called_by_the_name_in_its_certificate_if_that_is_given(others: CertificateFiles) -> None:
    with new_server(tls(others)) as thread:
        assert main(["check", thread.target, "--tls-ca", str(others.ca), "--server-name", "other.example"]) == 0


def test_check_says_when_there_is_nothing_to_talk_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for target, expected in (
        (
            f"127.0.0.1:{free_port()}",
            "no server is listening (connection refused); start a server with `fedstack serve`",
        ),
        ("no-such-host.invalid:8000", "the host name cannot be resolved ("),
        (f"unix:{tmp_path / 'none'}", "the socket does not exist; start a server with `fedstack serve --unix-socket`"),
        (f"unix:{tmp_path / 'file'}", "the path is not a socket (a file of another kind); "),
        (f"unix:{tmp_path}", "the path is not a socket (a folder); "),
    ):
        assert complaint(capsys, target).startswith(f"Cannot use the server at {target}: {expected}")


def test_what_nobody_asks_for_is_not_called_accepted(
    files: CertificateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    options = ["--tls-ca", files.ca, "--tls-cert", files.client_cert, "--tls-key", files.client_key]
    options += ["--token-file", tmp_path / "token"]
    with new_server(tls(files)) as thread:
        assert main(["check", thread.target, *map(str, options), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["encryption"], found["token"]) == ("TLS, client certificate not required", "not required")


def test_whoever_checks_with_the_token_is_not_counted_as_one_without(
    files: CertificateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    options = ["--tls-ca", files.ca, "--token-file", tmp_path / "token"]
    with new_server(tls(files, tokens=("secret",))) as thread:
        assert main(["check", thread.target, *map(str, options), "--json"]) == 0
        counts = list(thread.server.call_counts)
    assert json.loads(capsys.readouterr().out)["token"] == "accepted"
    assert {code for _, code, _ in counts} == {"OK"}


@pytest.mark.parametrize("command", ["check", "status"])
def test_a_token_for_another_machine_wants_tls_or_what_the_command_line_has(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    assert main([command, "no-such-host.invalid:1", "--token-file", str(tmp_path / "token")]) == 1
    assert capsys.readouterr().err == (
        f"fedstack {command}: error: Expected a TLS target for sending a token to another machine, found the "
        "plaintext target no-such-host.invalid:1; dial grpcs://no-such-host.invalid:1, or pass --tls-ca, or dial "
        "localhost through a tunnel (ssh -L)\n"
    )


def test_certificates_that_do_not_fit_are_wrong_usage_before_anybody_is_dialled(
    files: CertificateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for cert, key, ca, expected in (
        (files.client_cert, files.server_key, files.ca, "found the key of another certificate"),
        (files.client_key, files.client_cert, files.ca, "CERTIFICATE-----, found a private key"),
        (garbage, files.client_key, files.ca, "found content that cannot be read"),
        (files.client_cert, files.client_key, garbage, "Expected certificates of authorities in PEM"),
    ):
        options = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(ca)]
        assert main(["check", "no-such-host.invalid:1", *options]) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.long
def test_grpc_adds_nothing_to_what_check_says(files: CertificateFiles, target: str) -> None:
    for options in (["--tls-ca", files.ca], []):
        with new_server(tls(files, mutual=True)) as thread:
            for dialled in (thread.target, target, "127.0.0.1:1"):
                command = [sys.executable, "-m", "fedstack", "check", dialled, *map(str, options)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                if done.returncode:
                    assert done.stderr.startswith("fedstack check: error: Cannot use the server at ")
                assert done.stderr.count("\n") == done.returncode


def test_a_grpc_server_of_another_kind_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with ServerThread(GrpcServer([EchoService()])) as thread:
        assert main(["check", thread.target]) == 1
        expected = f"Expected a fedstack server at {thread.target}, found a gRPC server without fedstack services"
        assert expected in capsys.readouterr().err


class ServiceOfTFF(ExecutorService):
    """A plain executor service that has no executor for a request without cardinalities."""

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        found = super().methods[EXECUTOR_GROUP]
        get = cast(UnaryMethod, found["GetExecutor"])

        async def get_executor(request: bytes) -> bytes:
            if not request:
                raise StatusError(Code.NOT_FOUND, "Cardinality not found")
            return await get.handle(request)

        return {EXECUTOR_GROUP: {**found, "GetExecutor": UnaryMethod(get_executor)}}


@pytest.mark.parametrize("command", ["check", "status"])
@pytest.mark.parametrize("make", [ExecutorService, ServiceOfTFF])
def test_a_plain_executor_service_is_called_that_and_can_be_used(
    make: type[ExecutorService], command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: ExecutorStub) -> GetStatusResponse:
        raise fedstack.errors.RemoteError("no method", code="UNIMPLEMENTED")

    monkeypatch.setattr(ExecutorStub, "get_status", unknown)
    service = make(fedstack.local_executor_factory(), extensions=False)
    with ServerThread(GrpcServer([service])) as thread:
        assert main([command, thread.target]) == 0
        assert "a plain executor service, which can be used one value at a time" in capsys.readouterr().out
        assert main([command, thread.target, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["ok"], told["service"], told["target"]) == (True, "a plain executor service", thread.target)
        assert not service.status().session  # it was let go of


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (DispatchServer, "the dispatcher of a data service"),
        (lambda: WorkerServer(dispatcher_address="localhost:1"), "a worker of a data service"),
    ],
)
def test_servers_of_the_data_service_are_called_that(
    make: Callable[[], DispatchServer | WorkerServer], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with make() as server:
        address = server.target.removeprefix("grpc://")
        assert main(["check", server.target]) == 0
        assert f"{address} is up: {kind}\n" in capsys.readouterr().out


def test_check_of_a_server_with_methods_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with rpc.Server.create("grpc", "localhost:0") as server:
        assert main(["check", server.target]) == 0
        assert "is up: a server with methods to call\n" in capsys.readouterr().out


@contextlib.contextmanager
def server_that(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yields the port of a server that answers each connection in this way, once the client has sent something."""

    def serve(listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(0.05)  # who looks whether anybody listens sends nothing
                with contextlib.suppress(TimeoutError):
                    if connection.recv(1) == b"q":
                        return
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        port = listening.getsockname()[1]
        try:
            yield port
        finally:
            with socket.create_connection(("127.0.0.1", port)) as last:
                last.sendall(b"q")
            thread.join()


def test_a_server_that_hangs_up_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with server_that(lambda _: None) as port:
        found = complaint(capsys, f"127.0.0.1:{port}", "--timeout", "3")
    assert "it closes connections immediately; check whether it" in found
    assert "has room for another connection (--max-connections)" in found


def test_a_server_that_talks_something_else_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with server_that(lambda connection: connection.sendall(b"220 mail.example ESMTP ready\r\n")) as port:
        found = complaint(capsys, f"127.0.0.1:{port}", "--timeout", "3")
    assert found == f"Cannot use the server at 127.0.0.1:{port}: it does not speak gRPC; correct the host and port"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a process that can be paused")
def test_a_server_that_is_paused_is_said_not_to_answer(
    files: CertificateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    with_tls = ["--tls-cert", files.server_cert, "--tls-key", files.server_key]
    for options, ours in (([], []), (with_tls, ["--tls-ca", files.ca])):
        with served(*options) as server:
            assert main(["check", server.target, *map(str, ours)]) == 0
            capsys.readouterr()
            freeze(server.process.pid)
            for command in ("check", "status"):
                seconds = str(0.5 * slowness())
                assert main([command, server.target, "--timeout", seconds, *map(str, ours)]) == 1
                expected = (
                    f"Cannot use the server at {server.target}: it does not answer (it accepted a connection but "
                )
                assert expected in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
@pytest.mark.parametrize("waiting", [0, 3])
def test_a_socket_whose_server_takes_nobody_is_said_not_to_answer(
    waiting: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "socket"
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))
        listening.listen(1 if waiting else 100)
        for _ in range(waiting):
            client = sockets.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        found = complaint(capsys, f"unix:{path}", "--timeout", "0.5")
    assert found.startswith(f"Cannot use the server at unix:{path}: it does not answer (it accepted a connection but ")


@pytest.mark.long
@pytest.mark.parametrize("command", ["check", "status"])
def test_the_time_that_is_given_is_the_one_that_is_waited_and_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        for given, less_than in (("1", 4.0), ("4", WALL)):
            begun = time.monotonic()
            assert main([command, target, "--timeout", given]) == 1
            assert float(given) <= time.monotonic() - begun < less_than
            assert f"sent nothing within {given} s); " in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "inf", "1e10"])
def test_a_time_that_cannot_be_waited_is_wrong_usage(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "127.0.0.1:1", "--timeout", given]) == 2
    assert f"expected a number of seconds from 0.001 to 86400, found {given!r}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "status"])
def test_a_failure_can_be_json_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "no-such-host.invalid:8000", "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["ok"], found["target"], err) == (False, "no-such-host.invalid:8000", "")
    assert "the host name cannot be resolved" in found["error"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["localhost"],
        ["http://localhost:80"],
        ["localhost:1", "--token-file", "/no/such"],
        ["localhost:1", "--timeout", "x"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_what_cannot_be_dialled_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert re.search("xpected|Cannot read", capsys.readouterr().err)


@pytest.mark.parametrize("command", ["check", "status"])
@pytest.mark.parametrize(
    "arguments",
    [["localhost"], ["localhost:99999"], ["localhost:1", "--token-file", "/no/such"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage_can_be_json_too(command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["ok"], found["target"]) == (False, arguments[0])
    assert found["error"].startswith(("Expected ", "Cannot read "))
    assert err == f"fedstack {command}: error: {found['error']}; see 'fedstack {command} --help'\n"


def open_session(target: str, clients: int) -> None:
    async def work() -> None:
        connection = GrpcConnection(parse_target(target))
        cardinality = Cardinality(cardinality=clients)
        cardinality.placement.uri = fl.CLIENTS.uri
        await ExecutorStub(connection).open_session(OpenSessionRequest(cardinalities=[cardinality], lease_seconds=30))
        await connection.close()

    on_loop(work)


def test_status_shows_sessions_and_calls(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_session(target, 7)
    assert main(["status", target]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # Tests that ran in this process before may have compiled functions.
    lines = [line for line in out.splitlines() if not line.startswith("compiled ")]
    assert lines[0].startswith(f"{target}: fedstack {fedstack.__version__}, process {os.getpid()}, up for ")
    assert lines[1] == "sessions 1, values 0, bytes 0 B, running 0"
    assert re.fullmatch(r"threads \d+ of 32, busy \d+, on cancelled work 0, memory [1-9][\d.]* [KMG]iB", lines[2])
    assert re.fullmatch(r"streams \d+ at port \d+; clients on this machine use them", lines[3])
    assert lines[5].split() == ["session", "clients", "values", "bytes", "lease", "left"]
    assert lines[6].split()[1:4] == ["7", "0", "0"]
    assert lines[8].split() == ["method", "code", "calls"]
    assert lines[9].split() == ["fedstack.v1.ExecutorExtensions/OpenSession", "OK", "1"]
    assert len({len(line) for line in lines[5:7]} | {len(line) for line in lines[8:10]}) == 2


def test_status_tells_that_a_server_is_stopping_and_how_long_calls_have(capsys: pytest.CaptureFixture[str]) -> None:
    async def make() -> EchoService:
        return EchoService()

    async def begin_to_stop() -> None:
        stops.append(asyncio.ensure_future(server.stop(500)))
        await asyncio.sleep(0)  # until it has begun

    stops: list[asyncio.Future[None]] = []
    echo = on_loop(make)
    server = GrpcServer([ExecutorService(local_executor_factory()), echo], grace_seconds=1000)
    with ServerThread(server) as thread, futures.ThreadPoolExecutor(1) as pool:
        assert main(["status", thread.target, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["stopping"], found["seconds_until_stop"]) == (False, None)
        held = pool.submit(call, thread.target, "Hold", b"x")
        try:
            on_loop(echo.entered.wait)
            on_loop(begin_to_stop)
            assert main(["status", thread.target, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["stopping"]
            assert 400 < found["seconds_until_stop"] <= 500
            assert main(["status", thread.target]) == 0
            assert re.search(r"\nstopping: running calls have at most \d+ s left", capsys.readouterr().out)
        finally:
            io_loop.call_soon(echo.release.set)
        assert held.result(20) == b"x"


def test_status_can_print_json(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_session(target, 7)
    assert main(["status", target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["version"], found["values"]) == (True, fedstack.__version__, 0)
    assert [session["clients"] for session in found["sessions"]] == [7]
    assert 0 < found["sessions"][0]["lease_seconds_left"] <= 30
    assert found["calls"] == [{"method": "fedstack.v1.ExecutorExtensions/OpenSession", "code": "OK", "count": 1}]


def linger(x: np.int32) -> np.int32:
    """Waits at the client with the number 2 until the test lets it go on."""
    if x == 2:
        reached.set()
        assert released.wait(20)
    return x


reached, released = threading.Event(), threading.Event()


def test_status_shows_threads_and_which_functions_run_for_how_long_at_which_clients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leaf = fedstack.python_computation([np.int32], np.int32)(linger)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def linger_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(leaf, values)

    service = ExecutorService(local_executor_factory(max_concurrent_clients=1))
    with ServerThread(GrpcServer([service])) as thread, futures.ThreadPoolExecutor(1) as pool:
        with fedstack.create_sync_remote_execution_context(thread.target) as context:

            def call() -> object:
                with fedstack.use_context(context):
                    return linger_all([0, 1, 2])

            running = pool.submit(call)
            try:
                assert reached.wait(20)
                assert main(["status", thread.target, "--json"]) == 0
                found = json.loads(capsys.readouterr().out)
                assert main(["status", thread.target]) == 0
                text = capsys.readouterr().out
            finally:
                released.set()
            assert running.result(20) == [0, 1, 2]
        assert main(["status", thread.target, "--json"]) == 0
        after = json.loads(capsys.readouterr().out)
    (work,) = found["work"]
    assert (work["function"], work["session"]) == ("linger", found["sessions"][0]["id"])
    assert 2 in range(work["first_client"], work["first_client"] + work["clients"])
    assert work["client"] == 2
    assert 0 < work["seconds"] < 20
    assert found["threads"] >= found["busy_threads"] >= 1
    assert (found["abandoned_threads"], found["stalls"]) == (0, 0)
    assert found["resident_bytes"] > 10 << 20
    assert re.search(rf"\n\nfunction  session   +client +runs for\nlinger    {work['session']} +2 +\d+\.\d s\n", text)
    (phase,) = found["phases"]
    assert (phase["session"], phase["first_client"], phase["clients"]) == (work["session"], 0, 3)
    # The others of its block have begun with it, and run before it.
    assert (phase["running"], phase["failed"], phase["left"]) == (1, 0, 0)
    assert phase["handed_in"] <= phase["done"] <= 2
    header = r"phase of +clients +done +running +failed +handed in +left to others +origin"
    shown = rf"{header}\n{work['session']} +0 to 2 +\d +\d +0 "
    assert re.search(shown, text)
    assert (after["work"], after["phases"]) == ([], [])


def test_status_goes_on_to_show_what_was_cancelled_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    begun, end = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hang(x: np.int32) -> np.int32:
        begun.set()
        assert end.wait(20)
        return x

    service = ExecutorService(local_executor_factory())

    async def hang_and_give_up(target: str) -> None:
        executor = RemoteExecutor(ExecutorStub(GrpcConnection(parse_target(target))))
        executor.set_cardinalities({})
        value = await executor.create_call(
            await executor.create_value(hang), await executor.create_value(np.int32(7), np.int32)
        )
        computing = asyncio.ensure_future(value.compute())
        await until_set(begun, computing)
        computing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await computing
        executor.close()

    with ServerThread(GrpcServer([service])) as thread:
        try:
            asyncio.run(hang_and_give_up(thread.target))
            deadline = time.monotonic() + 20
            while True:
                assert main(["status", thread.target, "--json"]) == 0
                found = json.loads(capsys.readouterr().out)
                if not found["sessions"] and not found["running"]:
                    break
                assert time.monotonic() < deadline
            (work,) = found["work"]
            assert (work["function"], work["clients"], work["first_client"]) == ("hang", 0, None)
            assert found["abandoned_threads"] == 1
            assert main(["status", thread.target]) == 0
            text = capsys.readouterr().out
            assert ", on cancelled work 1, memory " in text
            assert re.search(rf"\nhang      {work['session']} \(ended\) +- +\d+\.\d s\n", text)
        finally:
            end.set()


def test_status_shows_a_client_that_took_too_long_as_long_as_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    end = threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def wait(x: np.int32) -> np.int32:
        assert x != 3 or end.wait(20)
        return x

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(wait, values))

    def work(target: str) -> list[dict[str, Any]]:
        assert main(["status", target, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["work"]

    failures = fedstack.ClientFailures(client_seconds=0.3, tolerate=1)
    with Server.create_local_server() as server:
        try:
            context = fedstack.create_sync_remote_execution_context(server.target, client_failures=failures)
            with context, fedstack.use_context(context):
                assert total(list(range(5))) == 7
                (one,) = work(server.target)
                assert (one["function"], one["client"]) == ("wait", 3)
                assert one["seconds"] >= 0.3
            (one,) = work(server.target)  # the session has ended
            assert one["client"] == 3
        finally:
            end.set()
        await_until(lambda: not work(server.target))


def test_status_says_how_often_and_how_long_a_server_stood_still() -> None:
    counts = StallCounts()
    counts.stalls, counts.longest_seconds = 3, 0.72

    async def make() -> GetStatusResponse:
        return await StatusService([], ServerFacts(), CallCounts(), counts, ServerLimits()).status()

    found = on_loop(make)
    assert (found.stalls, found.longest_stall_seconds) == (3, 0.72)
    assert "event loop blocked 3 times, for at most 0.72 s" in list(status_command.status_lines("worker", found))


def test_status_says_what_the_server_has_compiled() -> None:
    found = GetStatusResponse(compilations=3, compilations_from_cache=2, compilation_seconds=1.25)
    lines = list(status_command.status_lines("worker", found))
    assert "compiled 3 functions (2 from a cache on disk) in 1.2 s" in lines
    shown = status_command.status_lines("worker", GetStatusResponse(version="1"))
    assert not any(line.startswith("compiled") for line in shown)


def test_status_shows_extra_threads_as_such_and_no_server_as_its_own_origin() -> None:
    phase = GetStatusResponse.Phase(session="ab", clients=2)
    phase.origin.why, phase.origin.server = phase.origin.MOVED, "worker:1"
    found = GetStatusResponse(threads=36, max_threads=32, phase=[phase])
    shown = "\n".join(status_command.status_lines("worker:1", found))
    assert "threads 36 (32, and extra ones for work that waits or is cancelled), busy 0" in shown
    assert "moved from" not in shown
    assert "moved from worker:1" in "\n".join(status_command.status_lines("worker:2", found))


def test_status_shows_threads_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ServiceLimits(max_sessions=17)
    service = ExecutorService(local_executor_factory(max_concurrent_clients=3), limits=limits)
    with ServerThread(GrpcServer([service], limits=ServerLimits(max_calls=33))) as thread:
        assert main(["status", thread.target]) == 0
        text = capsys.readouterr().out
        assert main(["status", thread.target, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert re.search(r"^threads \d+ of 3, busy 0", text, re.MULTILINE)
    shown = " ".join(text.partition("limits: ")[2].split())
    assert "max-sessions 17," in shown
    assert "max-calls 33," in shown
    assert (told["max_threads"], told["limits"]["max_sessions"], told["limits"]["max_calls"]) == (3, 17, 33)


def test_status_shows_registered_methods_with_their_calls(capsys: pytest.CaptureFixture[str]) -> None:
    server = rpc.Server.create("grpc", "localhost:0")
    server.register("first", lambda x: x[0], parameter_types=[(np.int32, [None])], result_type=np.int32)
    with server, rpc.Client.create("grpc", server.target) as client:
        assert client.first_blocking([2]) == 2
        with pytest.raises(fedstack.FedstackError):
            client.first_blocking([])
        capsys.readouterr()
        assert main(["status", server.target]) == 0
        shown = capsys.readouterr().out
        assert main(["status", server.target, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert re.search(r"^registered +calls +errors +running +p50 +p99$", shown, re.MULTILINE)
    assert re.search(r"^first +2 +1 +0 +[\d.e-]+ ms +[\d.e-]+ ms$", shown, re.MULTILINE)
    (method,) = told["methods"]
    assert (method["name"], method["calls"], method["errors"], method["running"]) == ("first", 2, 1, 0)
    assert 0 < method["p50_seconds"] <= method["p99_seconds"]
