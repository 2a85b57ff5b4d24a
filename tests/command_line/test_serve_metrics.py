"""`fedstack serve --metrics-port`: real processes, read as Prometheus would."""

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from calling import WALL
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, served, told_by
from watching import watched

import fedstack
from fedstack.observe import PhaseStarted
from fedstack.service.host import metrics_page

pytestmark = pytest.mark.slow

Samples = dict[tuple[str, ...], float]


def url_of(server: Server) -> str:
    found = re.search(r"; metrics at (http://\S+/metrics)$", server.line.rstrip())
    assert found, server.line
    return found[1]


def samples_at(url: str) -> Samples:
    """Returns the value of each sample by its name and the values of its labels."""
    with urllib.request.urlopen(url, timeout=WALL) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total(values: Any) -> Any:
    def double(value: int) -> int:
        return 2 * value

    return fl.federated_sum(fl.federated_map(fedstack.python_computation(np.int32, np.int32)(double), values))


def test_a_worker_counts_what_it_does_for_its_clients() -> None:
    with served("--allow-python-code", "--metrics-port", 0) as server:
        before = samples_at(url_of(server))
        assert before["process_resident_memory_bytes",] > 0
        with fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
            assert total([1, 2, 3]) == 12
            expected = {
                ("fedstack_sessions_open",),
                ("fedstack_phase_duration_seconds_count", "double"),
                ("fedstack_rpcs_total", "OK", "fedstack.v1.ExecutorExtensions/Handshake"),
            }
            await_until(lambda: expected <= set(samples_at(url_of(server))))  # observers hear of it a moment later
            during = samples_at(url_of(server))
        assert all(during[name] >= 1 for name in expected)
        assert during["fedstack_sessions_open",] == 1


def test_slow_and_broken_clients_of_the_page_do_not_reach_the_worker() -> None:
    with served("--allow-python-code", "--metrics-port", 0) as server:
        host, port = url_of(server).removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
        slow = [socket.create_connection((host, int(port)), WALL) for _ in range(2 * metrics_page.MOST_CONNECTIONS)]
        for number, connection in enumerate(slow):
            connection.sendall(b"\0garbage" if number % 2 else b"GET /metr")
        with fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
            assert total([1, 2, 3]) == 12
        assert samples_at(url_of(server))
        for connection in slow:
            connection.close()


def test_the_page_ends_with_the_server() -> None:
    with served("--metrics-port", 0) as server:
        url = url_of(server)
        assert samples_at(url)
        server.process.terminate()
        out, err = server.process.communicate(timeout=WALL)
    assert (server.process.returncode, out, told_by(err)) == (0, "", [])
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=WALL)


def test_the_port_may_be_a_variable_and_the_log_json() -> None:
    environment = {"FEDSTACK_METRICS_PORT": "0", "FEDSTACK_METRICS_HOST": "localhost", "FEDSTACK_LOG_FORMAT": "json"}
    with served(environment=environment) as server:
        url = json.loads(server.line)["metrics"]
        assert url.startswith("http://localhost:")
        assert samples_at(url)


def test_without_the_option_there_is_no_page() -> None:
    with served() as server:
        assert "metrics" not in server.line


def test_the_host_is_an_error_without_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    from fedstack.__main__ import main

    assert main(["serve", "--metrics-host", "0.0.0.0"]) == 2
    assert "add --metrics-port; see 'fedstack serve --help'" in capsys.readouterr().err


def test_a_taken_port_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "fedstack", "serve", "--port", "0", "--metrics-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WALL)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"fedstack serve: error: Port {port} of 127.0.0.1 is in use; stop the process that listens on it, or choose "
        "another port (0 for any free port)\n"
    )


@pytest.mark.long
def test_a_taken_port_of_the_server_itself_ends_the_page() -> None:
    with served("--metrics-port", 0) as server:
        port = server.target.rpartition(":")[2]
        command = [sys.executable, "-m", "fedstack", "serve", "--port", port, "--metrics-port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WALL)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("package", ["opentelemetry", "prometheus_client"])
def test_without_the_packages_an_error_names_the_extra(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from fedstack.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--metrics-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert 'pip install "fedstack[metrics]"' in done.stderr


EXPORTS_TO_STANDARD_ERROR = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from fedstack.__main__ import main
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=sys.__stderr__, formatter=lambda span: span.to_json(None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_gives_its_spans_to_the_providers_that_are_there() -> None:
    command = [sys.executable, "-c", EXPORTS_TO_STANDARD_ERROR, "serve", "--port", "0", "--opentelemetry"]
    with subprocess.Popen(
        [*command, "--allow-python-code"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        target = process.stdout.readline().split(" serving on ")[1].split(" (")[0]
        with (
            watched() as diary,
            fedstack.create_sync_remote_execution_context(target) as context,
            fedstack.use_context(context),
        ):
            assert total([1]) == 2
        process.terminate()
        _, err = process.communicate(timeout=WALL)
    spans = [json.loads(line) for line in told_by(err)]
    assert [span["name"] for span in spans] == ["double"]
    [part] = [event for event in diary.events if isinstance(event, PhaseStarted) and event.worker]
    assert spans[0]["parent_id"] == f"0x{part.phase}"
    assert spans[0]["context"]["trace_id"] == f"0x{part.trace * 2}"
