"""`fedstack serve`: what its options make, and a few real processes."""

import contextlib
import json
import logging
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import click
import federated_language as fl
import numpy as np
import pytest
from calling import WALL, call, on_loop
from certificate_files import CertificateFiles, write_certificates
from grpc_health.v1 import health_pb2
from serving import Server, served, told_by

import fedstack
from fedstack import errors
from fedstack.__main__ import main
from fedstack.command_line import command, serve_command
from fedstack.command_line.output import JsonFormatter
from fedstack.command_line.serve_options import LIMITS
from fedstack.proto.extensions_pb2 import HandshakeRequest
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.peers.retry import RetryPolicy
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.status import code_of

HANDSHAKE = "/fedstack.v1.ExecutorExtensions/Handshake"
HELLO = HandshakeRequest(protocol=PROTOCOL).SerializeToString()
SERVING, NOT_SERVING = 1, 2


def options_of(*arguments: object) -> SimpleNamespace:
    return command.options_of(serve_command.COMMAND.make_context("serve", list(map(str, arguments))))


def tls_options(files: CertificateFiles) -> list[object]:
    return ["--tls-cert", files.server_cert, "--tls-key", files.server_key]


def test_the_ready_line_says_who_may_come_and_what_they_may_bring(files: CertificateFiles) -> None:
    def line(*arguments: object) -> str:
        found = serve_command.ready_line("h:1", options_of(*arguments))
        return found.removeprefix(f"fedstack {fedstack.__version__} serving on h:1 ")

    assert line() == "(insecure, loopback only); python code refused"
    assert line("--host", "0.0.0.0", "--insecure") == "(insecure, every network of this machine); python code refused"
    assert line("--unix-socket", "s") == "(insecure, this user only); python code refused"
    assert line("--allow-python-code", "--allow-module", "a", "--allow-module", "b") == (
        "(insecure, loopback only); python code allowed; modules a, b"
    )
    assert line("--allow-runtime", "tensorflow") == (
        "(insecure, loopback only); python code refused; runtimes tensorflow"
    )
    assert line("--client-states", "runs") == (
        "(insecure, loopback only); python code refused; states of clients in runs"
    )
    everything = [*tls_options(files), "--tls-client-ca", files.ca, "--token-file", "t", "--host", "::"]
    assert line(*everything) == (
        "(TLS, client certificates, token, every network of this machine); python code refused"
    )


def test_a_server_at_every_address_is_dialled_by_the_name_of_its_machine() -> None:
    def address(target: str, *arguments: object) -> str:
        return serve_command.dialled_address(target, serve_command.listens_at(options_of(*arguments)))

    assert address("127.0.0.1:81", "--host", "0.0.0.0") == f"{socket.gethostname()}:81"
    assert address("[::1]:81", "--host", "::") == f"{socket.gethostname()}:81"
    assert address("worker.example:81", "--host", "worker.example") == "worker.example:81"
    assert address("unix:/s", "--unix-socket", "/s", "--host", "0.0.0.0") == "unix:/s"


@pytest.mark.parametrize("arguments", [["--host", "localhost"], ["--port", "0"], ["--host", "::1", "--port", "1"]])
def test_a_socket_and_a_port_are_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    names = " and ".join(name for name in arguments if name.startswith("--"))
    with pytest.raises(click.UsageError, match=f"found --unix-socket and {names}; remove all but one"):
        serve_command.make_server(options_of("--unix-socket", tmp_path / "s", *arguments))


def test_a_socket_on_the_command_line_wins_over_a_port_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTACK_PORT", "81")
    serve_command.make_server(options_of("--unix-socket", tmp_path / "s"))
    monkeypatch.setenv("FEDSTACK_UNIX_SOCKET", str(tmp_path / "s"))
    with pytest.raises(click.UsageError, match="found FEDSTACK_UNIX_SOCKET and FEDSTACK_PORT; remove"):
        serve_command.make_server(options_of())
    with pytest.raises(click.UsageError, match="found FEDSTACK_UNIX_SOCKET and --port; remove"):
        serve_command.make_server(options_of("--port", "82"))
    with pytest.raises(click.UsageError, match="found --unix-socket and --host; remove"):
        serve_command.make_server(options_of("--unix-socket", tmp_path / "s", "--host", "::1"))


def test_a_host_may_be_in_brackets_as_it_is_in_addresses() -> None:
    assert serve_command.ready_line("h:1", options_of("--host", "[::1]")).endswith(
        "(insecure, loopback only); python code refused"
    )
    assert serve_command.listens_at(options_of("--host", "[::1]")).address == "[::1]:8000"
    serve_command.make_server(options_of("--host", "[::1]"))


def test_a_module_that_is_not_there_is_warned_of_and_none_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a_package").mkdir()
    for name in ("__init__.py", "inside.py"):
        (tmp_path / "a_package" / name).write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    modules = ["numpy", "a_package", "a_package.inside", "nosuch", "a_package.nosuch", "nosuch.inside"]
    serve_command.make_server(options_of("--allow-module", ",".join(modules)))
    found = [record.getMessage() for record in caplog.records if "--allow-module" in record.getMessage()]
    assert all(message.endswith("; correct the name, install the module, or set PYTHONPATH") for message in found)
    assert [message.split("found no module named ")[1].split(";")[0] for message in found] == [
        "'nosuch'",
        "'a_package.nosuch'",
        "'nosuch.inside'",
    ]


def test_a_folder_of_states_that_is_not_there_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    serve_command.make_server(options_of("--client-states", f"{tmp_path},{tmp_path / 'rums'}"))
    [record] = caplog.records
    assert f"found no folder at {tmp_path / 'rums'}; correct the path" in record.getMessage()


def test_certificates_that_have_expired_are_warned_of(
    files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve_command.make_server(options_of(*tls_options(files), "--tls-client-ca", files.ca))
    assert caplog.records == []
    expired = write_certificates(tmp_path, expired=True)
    file = expired.server_cert
    serve_command.make_server(options_of(*tls_options(expired), "--tls-client-ca", file))
    for record, option in zip(caplog.records, ("--tls-cert", "--tls-client-ca"), strict=True):
        told = f"Expected a certificate for {option} that is valid today, found {file}: it expired on "
        assert record.getMessage().startswith(told)


def test_certificates_that_are_incomplete_or_do_not_fit_are_wrong_usage(
    files: CertificateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, expected in (
        (["--tls-cert", files.server_cert], "; add --tls-key"),
        (["--tls-key", files.server_key], "; add --tls-cert"),
        (["--tls-client-ca", files.ca], f"only --tls-client-ca {files.ca}; add --tls-cert and --tls-key"),
        (
            ["--tls-cert", files.server_cert, "--tls-key", files.client_key],
            f"found the key of another certificate: {files.server_cert} and {files.client_key}; pass",
        ),
    ):
        assert main(["serve", "--port", "0", *map(str, given)]) == 2
        assert expected in capsys.readouterr().err


def test_more_clients_than_the_option_says_exhaust_a_resource_and_the_text_tells_the_option() -> None:
    with ServerThread(serve_command.make_server(options_of("--port", 0, "--max-clients", 5))) as server:
        context = fedstack.create_sync_remote_execution_context(server.target)
        with context, fedstack.use_context(context):
            assert total_of_crowds([1] * 5) == 5
            with pytest.raises(errors.ResourceLimitError) as caught:
                total_of_crowds([1] * 6)
        assert str(caught.value) == (
            "Expected at most 5 clients in a session or phase, found 6; use more workers, or start the worker with a "
            "larger --max-clients (in a program, pass ServiceLimits(max_clients=…)); this is a restriction of "
            f"the worker at {server.target}"
        )
        assert code_of(caught.value).name == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("name", ["numpy math", "numpy.*"])
def test_names_of_modules_that_are_meant_for_several_are_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    serve_command.make_server(options_of("--allow-module", name))
    [record] = caplog.records
    assert record.getMessage().endswith(
        f"found no module named {name!r}; separate modules by commas and do not use patterns; a "
        "module includes all its submodules"
    )


class Crowd:
    """Counts how many are in it at the same time; whoever comes in waits a moment for more than there should be."""

    def __init__(self, too_many: int) -> None:
        self.peak = 0
        self._too_many = too_many
        self._inside = 0
        self._changed = threading.Condition()

    def visit(self) -> None:
        with self._changed:
            self._inside += 1
            self.peak = max(self.peak, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.peak >= self._too_many, 0.05)
            self._inside -= 1


crowd = Crowd(3)


@fedstack.python_computation([np.int32], np.int32)
def visit_crowd(x):
    crowd.visit()
    return x


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total_of_crowds(xs):
    return fl.federated_sum(fl.federated_map(visit_crowd, xs))


def test_the_bound_of_threads_is_one_for_all_sessions_of_a_server() -> None:
    crowd.peak = 0
    with ServerThread(serve_command.make_server(options_of("--port", 0, "--threads", 2))) as server:

        def total(clients: int) -> int:
            context = fedstack.create_sync_remote_execution_context(server.target)
            with context, fedstack.use_context(context):
                return total_of_crowds([1] * clients)

        with futures.ThreadPoolExecutor(5) as pool:
            assert list(pool.map(total, range(1, 6))) == [1, 2, 3, 4, 5]
    assert crowd.peak <= 2


def test_code_from_other_machines_needs_their_certificates(files: CertificateFiles) -> None:
    code = ["--allow-python-code", "--host", "0.0.0.0", "--port", 0]
    modules = ["--allow-module", "*", "--host", "0.0.0.0", "--port", 0]
    pythons = ["--allow-module", "builtins", "--host", "0.0.0.0", "--port", 0]
    for arguments in (
        [*code, "--insecure"],
        [*code, *tls_options(files)],
        [*modules, "--insecure"],
        [*pythons, "--insecure"],
        ["--allow-runtime", "tensorflow", "--host", "0.0.0.0", "--port", 0, "--insecure"],
    ):
        with pytest.raises(click.UsageError, match="would run arbitrary code for clients without"):
            serve_command.make_server(options_of(*arguments))
    serve_command.make_server(options_of(*code, *tls_options(files), "--tls-client-ca", files.ca))
    serve_command.make_server(options_of("--allow-python-code"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "0.0.0.0"], "Expected TLS for an address that other machines can reach"),
        (["--tls-cert", "no-such.pem"], "no-such.pem"),
        (["--token-file", os.devnull], "Expected at least one token"),
    ],
)
def test_options_that_make_no_server_are_wrong_usage(arguments: list[str], complaint: str) -> None:
    with pytest.raises(click.UsageError, match=complaint):
        serve_command.make_server(options_of(*arguments))


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e999", "many", ""])
@pytest.mark.parametrize(
    "option",
    [
        "--port",
        "--clients",
        "--max-sessions",
        "--max-clients",
        "--max-value-bytes",
        "--max-message-bytes",
        "--lease-seconds",
        "--threads",
        "--grace-seconds",
    ],
)
def test_a_number_that_cannot_be_is_wrong_usage(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", option, value]) == 2
    assert f"Invalid value for '{option}': expected a" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lease-seconds", "0"],
        ["--lease-seconds", "0.01"],
        ["--max-sessions", "0"],
        ["--max-clients", 1 << 31],
        ["--max-value-bytes", 1 << 63],
        ["--max-message-bytes", 1 << 31],
        ["--host", ""],
    ],
    ids=str,
)
def test_an_option_with_which_no_call_would_go_well_is_wrong_usage(arguments: list[object]) -> None:
    assert main(["serve", *map(str, arguments)]) == 2


def test_more_clients_by_default_than_there_may_be_are_wrong_usage() -> None:
    with pytest.raises(click.UsageError, match=r"Expected --clients to be at most --max-clients \(5\), found 6; "):
        serve_command.make_server(options_of("--clients", 6, "--max-clients", 5))


@pytest.mark.parametrize(
    ("table", "field"),
    [(table, field.name) for table in LIMITS for field in attrs.fields(table) if field.name != "chunking"],
)
@pytest.mark.parametrize(
    "value", [0, -1, float("nan"), float("inf"), "1", None, True, 1 << 2000], ids=lambda value: str(value)[:9]
)
def test_a_limit_that_cannot_be_is_refused(table: type[Any], field: str, value: object) -> None:
    with pytest.raises(errors.InvalidValueError, match=f"Expected {field} .*found "):
        table(**{field: value})


@pytest.mark.parametrize(
    "options",
    [
        {"host": " "},
        {"port": -1},
        {"port": 65_536},
        {"compression": 1},
        {"grace_seconds": float("nan")},
    ],
    ids=str,
)
def test_a_server_of_odd_numbers_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidValueError, match=f"{next(iter(options))}.*, found"):
        GrpcServer([], **options)


def test_a_log_line_can_be_json() -> None:
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "failed\n%s", ("twice",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "a.b", "failed\ntwice")
    assert "by nothing" in found["exception"]


def test_a_log_line_of_json_has_the_call_function_and_client_that_a_record_has() -> None:
    record = logging.makeLogRecord({"name": "a", "msg": "failed", "function": "f", "client": 0, "call": None})
    found = json.loads(JsonFormatter().format(record))
    assert {name: found[name] for name in found if name not in ("time", "level", "logger")} == {
        "message": "failed",
        "function": "f",
        "client": 0,
    }


def ended(server: Server) -> tuple[int, str, str]:
    """Waits for a process; returns its exit code, and what else it said."""
    out, err = server.process.communicate(timeout=WALL)
    return server.process.returncode, out, err


def test_a_server_takes_its_options_from_the_environment_and_stops_when_asked(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    environment = {
        "FEDSTACK_TOKEN_FILE": str(tmp_path / "token"),
        "FEDSTACK_ALLOW_MODULE": "numpy,math",
        "FEDSTACK_LOG_FORMAT": "json",
        "FEDSTACK_LOG_LEVEL": "info",
    }
    with served(environment=environment) as server:
        ready = json.loads(server.line)
        assert ready["message"].endswith("(insecure, token, loopback only); python code refused; modules numpy, math")
        assert ready["target"] == server.target
        assert call(
            server.target,
            HANDSHAKE,
            HandshakeRequest(protocol=PROTOCOL).SerializeToString(),
            credentials=ClientCredentials(token="secret"),
        )
        server.process.send_signal(signal.SIGINT)
        code, out, err = ended(server)
    assert (code, out) == (0, "")
    messages = [json.loads(line)["message"] for line in told_by(err)]
    assert messages == [f"Listening on {server.target}", "Stop requested by SIGINT"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no such device")
@pytest.mark.slow
def test_functions_may_print_and_log_where_the_disk_is_full() -> None:
    def say_much(value: int) -> int:
        """Prints and logs in every way that there is."""
        import logging
        import sys
        import warnings

        for number in range(1000):
            print("a line", number, flush=True)
            print("another", file=sys.stderr)
            sys.stdout.write("no line")
            logging.getLogger("said").error("an error")
        warnings.warn("a warning", stacklevel=1)
        sys.stdout.buffer.write(b"bytes" * 10_000)
        sys.stdout.buffer.flush()
        return value if sys.stdout.fileno() == 2 and not sys.stderr.isatty() else -1

    with open("/dev/full", "w") as full, served("--allow-python-code", stderr=full) as server:
        leaf = fedstack.python_computation(np.int64, np.int64)(say_much)
        everywhere = fl.federated_computation(fl.FederatedType(np.int64, fl.CLIENTS))(
            lambda values: fl.federated_map(leaf, values)
        )
        context = fedstack.create_sync_remote_execution_context(server.target)
        with context, fedstack.use_context(context):
            assert list(map(int, everywhere([1, 2, 3]))) == [1, 2, 3]
        server.process.send_signal(signal.SIGINT)
        code, out, _ = ended(server)
    assert (code, out) == (0, "")


class HeldCall:
    """A computation that a client runs on a server, and that does not end before the test says so."""

    def __init__(self, target: str, listening: socket.socket) -> None:
        port = listening.getsockname()[1]

        @fedstack.python_computation(np.int32, np.int32)
        def hold(value: int) -> int:
            import socket

            with socket.create_connection(("127.0.0.1", port)) as connection:
                return value if connection.recv(1) else -1

        @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
        def hold_everywhere(values: Any) -> Any:
            return fl.federated_sum(fl.federated_map(hold, values))

        def run() -> None:
            context = fedstack.create_sync_remote_execution_context(target, retry_policy=RetryPolicy.none())
            try:
                with fedstack.use_context(context):
                    self.outcome = hold_everywhere([41])
            except errors.FedstackError as error:
                self.outcome = type(error)  # the error itself would keep all that it has passed through
            finally:
                context.close()

        self.outcome: object = None
        self.thread = threading.Thread(target=run)
        self.thread.start()
        listening.settimeout(WALL)
        self.connection, _ = listening.accept()

    def release(self) -> object:
        """Lets the computation end, if it can; returns its result, or the class of the error that it ended with."""
        with self.connection:
            with contextlib.suppress(OSError):
                self.connection.sendall(b"!")
            self.thread.join(WALL)
        assert not self.thread.is_alive()
        return self.outcome


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def wait_until_it_is_draining(target: str) -> None:
    async def watch() -> None:
        connection = GrpcConnection(parse_target(target))
        last = SERVING
        async for answer in connection.stream("/grpc.health.v1.Health/Watch", [b""]):
            last = health_pb2.HealthCheckResponse.FromString(answer).status
        await connection.close()
        assert last == NOT_SERVING

    on_loop(watch)


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_a_call_in_flight_comes_to_its_end_after_sigterm(listening: socket.socket) -> None:
    with served("--allow-python-code", "--log-level", "info") as server:
        held = HeldCall(server.target, listening)
        server.process.terminate()
        wait_until_it_is_draining(server.target)
        assert server.process.poll() is None
        told = [server.process.stderr.readline()]
        while "Waiting for" not in told[-1]:
            assert told[-1], told
            told.append(server.process.stderr.readline())
        assert "Waiting for 1 running call, at most 30 s (--grace-seconds); a second signal ends" in told[-1]
        assert held.release() == 41
        code, _, _ = ended(server)
    assert code == 0
    assert "Stop requested by SIGTERM" in "".join(told)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_a_server_that_drains_takes_no_new_sessions_and_the_work_goes_elsewhere(
    listening: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(values)

    def compute(*targets: str, seconds: float) -> object:
        context = fedstack.create_sync_remote_execution_context(list(targets), connect_seconds=seconds)
        try:
            with fedstack.use_context(context):
                return total([1, 2, 3])
        finally:
            context.close()

    with served("--allow-python-code") as server, served() as other:
        before = fedstack.create_sync_remote_execution_context([server.target, other.target])
        with fedstack.use_context(before):
            assert total([1, 2, 3]) == 6
        held = HeldCall(server.target, listening)
        server.process.terminate()
        wait_until_it_is_draining(server.target)
        with pytest.raises(errors.NoWorkersError, match="is stopping and accepts no new sessions"):
            compute(server.target, seconds=2)
        assert main(["check", server.target]) == 1
        assert "is stopping and accepts no new sessions" in capsys.readouterr().err
        assert compute(server.target, other.target, seconds=20) == 6
        with fedstack.use_context(before):
            assert total([4, 5, 6]) == 15
        before.close()
        assert held.release() == 41


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_who_stops_a_server_twice_at_once_asks_once() -> None:
    with served() as server:
        server.process.terminate()
        server.process.terminate()
        code, _, _ = ended(server)
    assert code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_asking_again_ends_the_process_at_once(listening: socket.socket) -> None:
    with served("--allow-python-code") as server:
        held = HeldCall(server.target, listening)
        server.process.terminate()
        wait_until_it_is_draining(server.target)
        for _ in range(600):  # the first of them still counts as the same request
            server.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(0.1)
                break
        code, _, _ = ended(server)
        assert issubclass(held.release(), errors.RetryLimitError)
    assert code == 128 + signal.SIGTERM


def test_a_server_ends_with_its_parent_whatever_it_is_doing(listening: socket.socket) -> None:
    with served("--allow-python-code", "--exit-with-parent") as server:
        held = HeldCall(server.target, listening)
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.process.stdin = None
        code, _, _ = ended(server)
        assert issubclass(held.release(), errors.RetryLimitError)
    assert code == 0


def test_what_functions_print_does_not_follow_the_ready_line() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def chatter(value: int) -> int:
        print("chatter")
        return value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def chatter_everywhere(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(chatter, values))

    with served("--allow-python-code", "--exit-with-parent") as server:
        context = fedstack.create_sync_remote_execution_context(server.target)
        with fedstack.use_context(context):
            assert chatter_everywhere([1, 2]) == 3
        context.close()
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.process.stdin = None
        code, out, err = ended(server)
    assert (code, out) == (0, "")
    assert err.count("chatter\n") == 2


def test_functions_do_not_read_what_is_typed_at_the_terminal_of_a_server() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def bytes_read(value: int) -> int:
        import select
        import sys

        return len(sys.stdin.read()) if os.name != "posix" or select.select([0], [], [], value)[0] else -1

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def read_everywhere(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(bytes_read, values))

    with served("--allow-python-code") as server:  # its standard input is a pipe that stays open
        context = fedstack.create_sync_remote_execution_context(server.target)
        with fedstack.use_context(context):
            assert read_everywhere([int(WALL)]) == 0
        context.close()


def test_what_functions_warn_of_is_in_the_format_of_the_log() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def warn(value: int) -> int:
        import warnings

        warnings.warn("a lot", stacklevel=1)
        return value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def warn_everywhere(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(warn, values))

    with served("--allow-python-code", "--log-format", "json") as server:
        context = fedstack.create_sync_remote_execution_context(server.target)
        with fedstack.use_context(context):
            assert warn_everywhere([1]) == 1
        context.close()
        server.process.terminate()
        _, _, err = ended(server)
    entries = [json.loads(line) for line in told_by(err)]
    [entry] = [entry for entry in entries if entry["logger"] == "py.warnings"]
    assert entry["level"] == "warning"
    assert "a lot" in entry["message"]


@pytest.mark.slow
def test_what_functions_print_is_in_the_format_of_the_log() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def chatter(value: int) -> int:
        import sys

        print("one", 1)
        print("two\n\nthree", file=sys.stderr)
        sys.stdout.buffer.write(b"\xff no text\n")
        sys.stdout.write("no end")
        return value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def chatter_everywhere(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(chatter, values))

    with served("--allow-python-code", "--log-format", "json") as server:
        context = fedstack.create_sync_remote_execution_context(server.target)
        with fedstack.use_context(context):
            assert chatter_everywhere([1]) == 1
        context.close()
        server.process.terminate()
        _, _, err = ended(server)
    entries = [json.loads(line) for line in told_by(err)]
    assert [entry["message"] for entry in entries] == ["one 1", "two", "three", r"\xff no text", "no end"]
    assert {(entry["level"], entry["logger"]) for entry in entries} == {("info", "output")}


@pytest.mark.slow
def test_a_failed_call_is_a_line_with_its_function_and_client() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def pick(value: int) -> int:
        return [7][value]

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def pick_everywhere(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(pick, values))

    with served("--allow-python-code", "--log-format", "json") as server:
        with fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
            with pytest.raises(errors.LeafError):
                pick_everywhere([0, 1])
        server.process.terminate()
        _, _, err = ended(server)
    [entry] = [json.loads(line) for line in told_by(err)]
    assert (entry["level"], entry["function"], entry["client"]) == ("warning", "pick", 1)


@pytest.mark.long
def test_a_function_that_is_refused_is_an_error_that_names_the_worker_that_refuses_it() -> None:
    by_reference = fedstack.python_computation([fl.SequenceType(np.float64)], np.float64)(statistics.median)
    by_value = fedstack.python_computation([fl.SequenceType(np.float64)], np.float64)(lambda values: 1.0)

    def compute(function: Any, *targets: str) -> object:
        @fl.federated_computation(fl.FederatedType(fl.SequenceType(np.float64), fl.CLIENTS))
        def everywhere(values: Any) -> Any:
            return fl.federated_sum(fl.federated_map(function, values))

        context = fedstack.create_sync_remote_execution_context(list(targets))
        try:
            with fedstack.use_context(context):
                return everywhere([[1.0], [2.0]])
        finally:
            context.close()

    with served("--allow-module", "statistics") as letting, served() as refusing:
        assert compute(by_reference, letting.target) == 3.0
        for function, targets in (
            (by_reference, [refusing.target]),
            (by_reference, [letting.target, refusing.target]),
            (by_value, [refusing.target]),
        ):
            with pytest.raises(errors.CarrierError, match=f" restriction of the worker at {refusing.target}$"):
                compute(function, *targets)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--port", "x"], 2, "expected a whole number"),
        (["--host", "0.0.0.0"], 2, "Expected TLS"),
        (["--host", "203.0.113.1", "--insecure"], 1, "Expected an address of this machine, found 203.0.113.1"),
    ],
)
def test_an_error_at_the_start_is_in_the_format_of_the_log(arguments: list[str], code: int, complaint: str) -> None:
    command = [sys.executable, "-m", "fedstack", "serve", *arguments, "--log-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL)
    assert (done.returncode, done.stdout) == (code, "")
    [entry] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (entry["level"], entry["logger"]) == ("error", "fedstack serve")
    assert complaint in entry["message"]


def test_a_port_in_use_is_one_line_and_exit_code_1(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve_command, "configure_logging", lambda *_: None)
    port = listening.getsockname()[1]
    assert main(["serve", "--port", str(port)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"fedstack serve: error: Port {port} of 127.0.0.1 is in use; stop the process that "
        "listens on it, or choose another port (0 for any free port)\n"
    )
