"""Examples with real workers: what the README says to type."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sklearn")

from serving import first_line, served

import fedstack
from fedstack.command_line.certificates import CertificateFiles, make_test_certificates
from fedstack.demo.training import load_example
from fedstack.service import ClusterSpec

pytestmark = pytest.mark.long  # several processes each, that import much

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENVIRONMENT = {"PYTHONPATH": str(EXAMPLES)}
MODULE = ["--allow-module", "federated_averaging"]
WALL = 60


def accuracies(*arguments: object) -> list[str]:
    """Runs the example; returns what it says of each round."""
    command = [sys.executable, EXAMPLES / "remote_workers.py", "--clients", "4", "--rounds", "2", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^round \d+: accuracy 0\.\d{4}$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_test_certificates(tmp_path_factory.mktemp("certificates"))


def test_the_example_trains_on_two_workers() -> None:
    with served(*MODULE, environment=ENVIRONMENT) as first, served(*MODULE, environment=ENVIRONMENT) as second:
        found = accuracies(first.target, second.target)
    assert len(found) == 2
    assert found[0] < found[1]


def test_the_example_trains_on_a_worker_that_wants_certificates(files: CertificateFiles) -> None:
    tls = ["--tls-cert", files.server_cert, "--tls-key", files.server_key, "--tls-client-ca", files.ca]
    with served(*MODULE, *tls, environment=ENVIRONMENT) as worker:
        found = accuracies("--certs", files.ca.parent, worker.target.replace("127.0.0.1", "localhost"))
    assert len(found) == 2


def test_functions_of_modules_that_are_not_allowed_are_refused() -> None:
    with served(environment=ENVIRONMENT) as worker:
        with pytest.raises(AssertionError, match="start the worker with --allow-module federated_averaging"):
            accuracies(worker.target)


def test_the_example_averages_on_a_cluster_of_two_tasks(tmp_path: Path) -> None:
    assert ClusterSpec.from_file(EXAMPLES / "cluster.toml").num_tasks("worker") == 2
    cluster, addresses = tmp_path / "cluster.toml", tmp_path / "addresses"
    cluster.write_text('[cluster]\nworker = ["localhost:0", "localhost:0"]')
    task = ["--cluster", cluster, "--addresses", addresses]
    command = [sys.executable, EXAMPLES / "two_tasks.py", cluster, "--addresses", addresses]
    with served(*task, "--task", 0), served(*task, "--task", 1):
        done = subprocess.run(command, capture_output=True, text=True, timeout=WALL, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+\.\d{4} on average of 1000 clients, on 2 tasks\n", done.stdout)


def test_the_example_sweeps_over_workers_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "parameter_sweep.py", "--points", "3", "--picture", tmp_path / "sweep.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^best: step size [\d.]+, momentum [\d.]+, loss ", done.stdout, re.MULTILINE)
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_the_example_trains_on_images_that_never_pass_through_its_process() -> None:
    command = [sys.executable, EXAMPLES / "client_data.py", "--clients", "8", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL, check=False)
    assert done.returncode == 0, done.stderr
    assert "kilobytes of examples that crossed it: 0 " in done.stdout
    averaging = load_example()
    with fedstack.create_sync_local_execution_context():
        local = averaging.train(*averaging.load_clients(8, seed=0), num_rounds=2, seed=0)
        assert re.findall(r"^round \d: (.*)$", done.stdout, re.MULTILINE) == [
            f"accuracy {metrics['accuracy']:.4f}, loss {metrics['loss']:.4f}" for metrics in local
        ]


def raw_client(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / "raw_client.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WALL, check=False)


def test_the_raw_client_computes_also_where_a_token_is_asked_for(tmp_path: Path) -> None:
    assert raw_client("--help").stdout.startswith("usage: raw_client.py")
    (tmp_path / "token").write_text("secret")
    with served("--token-file", tmp_path / "token") as worker:
        assert raw_client(worker.target, "--token-file", str(tmp_path / "token")).stdout == "3.5\n"
        refused = raw_client(worker.target)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"{worker.target}: UNAUTHENTICATED: the token of this server is not with the call\n"
    away = raw_client(worker.target)
    assert away.stderr.startswith(f"{worker.target}: UNAVAILABLE: ")
    assert "Traceback" not in away.stderr


def test_the_rpc_example_trains_a_model_at_its_server() -> None:
    command = [sys.executable, EXAMPLES / "rpc_service.py"]
    serving = [*command, "serve", "localhost:0"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            target = first_line(server).removeprefix("serving read, step at ").strip()
            training = [*command, "train", target, "--steps", "150"]
            done = subprocess.run(training, capture_output=True, text=True, timeout=WALL, check=False)
        finally:
            server.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "weights [1.0, 2.0, 3.0, 4.0] after 150 steps\n"
