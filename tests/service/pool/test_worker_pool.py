"""Worker processes of this machine: what they can do, who can use them, and that none is left over."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import psutil
import pytest
from calling import WALL, call
from thread_starts import ThreadStarts

import fedstack
from fedstack import errors
from fedstack.proto.extensions_pb2 import HandshakeRequest
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool
from fedstack.transport.peers.executor_stub import PROTOCOL

pytestmark = pytest.mark.slow

HANDSHAKE = "/fedstack.v1.ExecutorExtensions/Handshake"
HELLO = HandshakeRequest(protocol=PROTOCOL).SerializeToString()
CLIENT_INTS = fl.FederatedType(np.int64, fl.CLIENTS)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with local_worker_pool(2) as found:
        yield found


def at_clients(pool: WorkerPool, function: Callable[[int], int], values: list[int]) -> list[int]:
    """Runs a function at clients, by value."""
    leaf = fedstack.python_computation(np.int64, np.int64)(function)

    @fl.federated_computation(CLIENT_INTS)
    def everywhere(values: Any) -> Any:
        return fl.federated_map(leaf, values)

    context = fedstack.create_sync_remote_execution_context(pool.targets, credentials=pool.credentials)
    try:
        with fedstack.use_context(context):
            return [int(value) for value in everywhere(values)]
    finally:
        context.close()


def test_a_function_that_no_worker_could_get_is_not_put_down_to_one_of_them(pool: WorkerPool) -> None:
    lock = threading.Lock()

    @fedstack.python_computation(np.int64)
    def locked(x: np.int64) -> np.int64:
        with lock:
            return x

    @fl.federated_computation(CLIENT_INTS)
    def lock_all(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(locked, values))

    with (
        fedstack.create_sync_remote_execution_context(pool),
        pytest.raises(errors.CarrierError, match="such as locks and open files$"),
    ):
        lock_all([1, 2])


def test_each_worker_of_a_pool_takes_its_share(pool: WorkerPool, tmp_path: Path) -> None:
    folder, wall = str(tmp_path), WALL

    def process_id(value: int) -> int:
        import os
        import pathlib
        import time

        (pathlib.Path(folder) / str(os.getpid())).touch()
        end = time.monotonic() + wall
        while len(os.listdir(folder)) < 2 and time.monotonic() < end:  # else one may take the share of the other
            time.sleep(0.005)
        return os.getpid()

    assert set(at_clients(pool, process_id, list(range(64)))) == set(pool.pids)


def test_a_pool_is_a_cluster_with_one_job(pool: WorkerPool) -> None:
    spec = pool.cluster_spec
    assert spec == {"worker": list(pool.targets)}
    leaf = fedstack.python_computation(np.int64, np.int64)(lambda value: value + 1)
    everywhere = fl.federated_computation(lambda values: fl.federated_map(leaf, values), CLIENT_INTS)
    for place in (spec, spec.job("worker"), [spec.job()]):
        with fedstack.create_sync_remote_execution_context(place, credentials=pool.credentials):
            assert everywhere([1, 2, 3]) == [2, 3, 4]


def variable(name: str) -> Callable[[int], int]:
    def value_of(value: int) -> int:
        import os

        return int(os.environ.get(name, "-1"))

    return value_of


@pytest.mark.skipif("OMP_NUM_THREADS" in os.environ, reason="says otherwise")
def test_the_workers_share_the_cores(pool: WorkerPool) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert at_clients(pool, variable("OMP_NUM_THREADS"), [0]) == [max(1, cores // 2)]


def test_clients_that_compute_use_the_share_of_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def cores(value: int) -> int:
        from fedstack.executors.concurrency.leaf_threads import CORES

        return CORES

    monkeypatch.setattr("fedstack.service.pool.worker_pool.CORES", 6)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "6")  # of this process, not of each worker
    with local_worker_pool(2) as pool:
        assert at_clients(pool, cores, [0]) == [3]
    with local_worker_pool(2, environment={"PYTHON_CPU_COUNT": "5"}) as pool:
        assert at_clients(pool, cores, [0]) == [5]


def test_workers_have_the_environment_of_their_parent_but_for_the_options_of_other_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("FEDSTACK_TLS_CERT", "/no/such/file")
    with local_worker_pool(1, environment={"ONE_MORE": "5"}) as pool:
        assert at_clients(pool, variable("OMP_NUM_THREADS"), [0]) == [7]
        assert at_clients(pool, variable("ONE_MORE"), [0]) == [5]


def test_each_worker_may_have_an_environment_of_its_own() -> None:
    leaf = fedstack.python_computation(np.int64, np.int64)(variable("WHICH"))
    everywhere = fl.federated_computation(lambda values: fl.federated_map(leaf, values), CLIENT_INTS)
    with local_worker_pool(2, environment=[{"WHICH": "3"}, {"WHICH": "4"}]) as pool:
        for target, which in zip(pool.targets, (3, 4)):  # each alone: one may take the share of the other
            with fedstack.create_sync_remote_execution_context(target, credentials=pool.credentials):
                assert everywhere([0]) == [which]


def test_environments_are_as_many_as_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # so that the test does no harm if it fails
    with pytest.raises(errors.InvalidValueError, match="for each of the 2 workers, found those of 1; pass a list"):
        local_worker_pool(2, environment=[{}])
    wrong: list[Any] = [{"CUDA_VISIBLE_DEVICES": 1}, [{"CUDA_VISIBLE_DEVICES": 1}], ["A=1"]]
    for environment in wrong:
        with pytest.raises(errors.InvalidValueError, match=r"as a dict of strings, found .*; write values as strings"):
            local_worker_pool(1, environment=environment)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"options": "--threads 1"}, r"found the string '--threads 1'; write \['--threads', '1'\]"),
        ({"modules": 5}, "Expected modules as a list of strings, found int 5; write them in a list"),
        ({"data_services": [None]}, "Expected data_services as a list of strings"),
        ({"client_states": [7]}, "Expected client_states to contain paths of folders, found int 7"),
    ],
)
def test_arguments_that_are_no_lists_of_strings_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(errors.InvalidValueError, match=match):
        local_worker_pool(1, **arguments)


def test_a_single_folder_need_not_be_in_a_list_and_a_missing_one_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = str(tmp_path / "runs")
    with local_worker_pool(1, client_states=missing, modules="numpy") as pool:
        assert "1 of them alive" in repr(pool)
    assert (
        f"Expected the folders in client_states to exist on this machine, found no folder at {missing}" in caplog.text
    )


def test_workers_import_what_this_process_can_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def twice(value: int) -> int:\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    with local_worker_pool(1) as pool:
        assert at_clients(pool, only_here.twice, [1, 2]) == [2, 4]


def test_functions_by_value_take_along_what_they_refer_to_now(pool: WorkerPool) -> None:
    rate = {"now": 1.0}
    factor = 2.0

    def scaled(x: Any) -> Any:
        return np.float32(x * rate["now"] * factor)

    leaf = fedstack.python_computation([np.float32], np.float32)(scaled)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(leaf, values))

    context = fedstack.create_sync_remote_execution_context(pool)
    try:
        with fedstack.use_context(context):
            assert total([1.0, 2.0]) == 6.0
            rate["now"] = 0.5
            assert total([1.0, 2.0]) == 3.0
            factor = 4.0
            assert total([1.0, 2.0]) == 6.0
            rate["now"], factor = 1.0, 2.0
            assert total([1.0, 2.0]) == 6.0
    finally:
        context.close()


def test_what_functions_print_is_seen_here(pool: WorkerPool, capsys: pytest.CaptureFixture[str]) -> None:
    def chatter(value: int) -> int:
        print(f"chatter {value}")
        return value

    at_clients(pool, chatter, [5])
    # It comes by a pipe, and there is nothing to wait on but the text.
    deadline = time.monotonic() + WALL
    err = ""
    while "chatter 5\n" not in err and time.monotonic() < deadline:
        err += capsys.readouterr().err
    assert "chatter 5\n" in err


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no such device")
def test_what_functions_print_is_dropped_where_the_disk_is_full() -> None:
    program = (
        "import federated_language as fl, fedstack, numpy\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        "leaf = fedstack.python_computation(numpy.int64, numpy.int64)(lambda x: print('x' * 20_000) or x)\n"
        "everywhere = fl.federated_computation(fl.FederatedType(numpy.int64, fl.CLIENTS))(\n"
        "    lambda values: fl.federated_map(leaf, values)\n"
        ")\n"
        "with local_worker_pool(1) as pool, fedstack.create_sync_remote_execution_context(pool) as context:\n"
        "    with fedstack.use_context(context):\n"
        "        for _ in range(20):\n"
        "            assert everywhere([1, 2]) == [1, 2]\n"
        "    assert '1 of them alive' in repr(pool), pool\n"
        "print('done', flush=True)\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, timeout=WALL)
    assert done.stdout == b"done\n"  # Python may say by the exit code that it could not write


def what_it_reads(value: int) -> int:
    """Returns how many bytes a function, and a process that it starts, read from standard input; -1 for none so far."""
    import os
    import select
    import subprocess
    import sys

    if os.name == "posix" and not select.select([0], [], [], value)[0]:
        return -1
    child = subprocess.run([sys.executable, "-c", "print(len(input()))"], capture_output=True, timeout=value)
    return len(sys.stdin.read()) + len(child.stdout)


def test_functions_at_workers_find_the_end_of_an_empty_standard_input(pool: WorkerPool) -> None:
    assert at_clients(pool, what_it_reads, [int(WALL)]) == [0]


def test_nobody_else_can_use_the_workers(pool: WorkerPool) -> None:
    assert pool.credentials.token is not None
    for stranger in (None, attrs.evolve(pool.credentials, token="guess")):
        with pytest.raises(errors.AuthenticationError):
            call(pool.targets[0], HANDSHAKE, credentials=stranger)
    assert call(
        pool.targets[0],
        HANDSHAKE,
        HandshakeRequest(protocol=PROTOCOL).SerializeToString(),
        credentials=pool.credentials,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="has no Unix sockets")
def test_the_token_is_nowhere_to_be_seen(pool: WorkerPool) -> None:
    token = pool.credentials.token
    assert token is not None
    assert token not in repr(pool)
    folder = Path(pool.targets[0].removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["0.sock", "0.sock-s", "1.sock", "1.sock-s"]
    for pid in pool.pids:
        process = psutil.Process(pid)
        assert token not in " ".join(process.cmdline())
        assert token not in process.environ().values()


@pytest.mark.skipif(sys.platform == "win32", reason="has no process groups")
def test_ctrl_c_is_not_for_the_workers(pool: WorkerPool) -> None:
    assert os.getpgid(0) not in {os.getpgid(pid) for pid in pool.pids}


@pytest.mark.long
def test_closing_ends_the_workers_and_removes_their_files() -> None:
    pool = local_worker_pool(2, options=["--log-level", "error"])
    processes = [psutil.Process(pid) for pid in pool.pids]
    assert "2 of them alive" in repr(pool)
    pool.close()
    pool.close()
    assert [process for process in processes if process.is_running()] == []
    assert "0 of them alive" in repr(pool)
    if pool.targets[0].startswith("unix:"):
        assert not Path(pool.targets[0].removeprefix("unix:")).parent.exists()


def test_a_worker_that_does_not_start_says_why() -> None:
    with pytest.raises(errors.WorkerUnavailableError) as raised:
        local_worker_pool(1, options=["--dance"])
    assert str(raised.value).startswith("Worker 0 did not start: it ended with exit status 2; its output was:\n")
    assert "No such option '--dance'" in str(raised.value)


def test_workers_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    start, silent = subprocess.Popen, [sys.executable, "-c", "import sys; sys.stdin.read()"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(silent, **options))
    with pytest.raises(errors.WorkerUnavailableError, match="it was not ready within 0 s; it printed nothing"):
        local_worker_pool(1, startup_seconds=0)


def test_a_closed_pool_is_not_entered() -> None:
    with local_worker_pool(1) as closed:
        pass
    with pytest.raises(errors.ClosedError, match="The worker pool is closed"), closed:
        pass


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (1.5, "Expected a number of workers to be a whole number of at least 1, found float 1.5"),
        (1 << 40, "Expected at most [0-9]+ workers for the [0-9]+ cores of this machine, found 1099511627776;"),
    ],
)
def test_a_number_of_workers_that_cannot_be_meant_starts_none(
    n: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # so that the test does no harm if it fails
    with pytest.raises(errors.InvalidValueError, match=told):
        local_worker_pool(n)


def test_a_pool_has_at_least_one_worker() -> None:
    with pytest.raises(errors.InvalidValueError, match="Expected a number of workers of at least 1, found 0"):
        local_worker_pool(0)


@pytest.mark.long
def test_workers_end_with_their_parent_however_it_ends() -> None:
    program = (
        "import sys\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        "pool = local_worker_pool(2)\n"
        "print(*pool.pids, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=WALL)
    assert alive == []


def wait_for(is_so: Callable[[], bool]) -> None:
    """Returns when something is so that other processes bring about."""
    deadline = time.monotonic() + WALL
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        threading.Event().wait(0.01)


@contextlib.contextmanager
def parent_with_a_pool(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """Runs a program that has a pool until the end of its input; its temporary folders are in `tmp_path`."""
    program = (
        "import signal, sys\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        # Shells let what they start in the background ignore Ctrl-C, and these tests may be among it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with local_worker_pool(2) as pool:\n"
        "    print(*pool.pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        try:
            yield parent, [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        finally:
            parent.kill()


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_workers_whose_parent_cannot_clear_up_remove_the_files_of_the_pool(tmp_path: Path, number: int) -> None:
    with parent_with_a_pool(tmp_path) as (parent, workers):
        assert len(list(tmp_path.glob("fedstack-*/*.sock"))) == 2
        workers[0].kill()  # its socket stays where it is
        parent.send_signal(number)
        parent.wait(WALL)
        wait_for(lambda: not list(tmp_path.iterdir()))
        _, alive = psutil.wait_procs(workers, timeout=WALL)
    assert alive == []


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_a_program_that_ends_removes_the_files_of_a_pool_whose_workers_were_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        "pool = local_worker_pool(1)\n"
        "if os.fork() == 0:\n"
        "    sys.exit()\n"  # a child's end is not the end of the pool
        "os.wait()\n"
        "assert len(os.listdir(sys.argv[1])) == 1\n"
        "os.kill(pool.pids[0], signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True, timeout=WALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="cannot fork")
def test_workers_end_with_their_parent_though_a_child_of_its_lives_on() -> None:
    program = (
        "import os, sys\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        "pool = local_worker_pool(2)\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "print(*pool.pids, flush=True)\n"
        "os.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        children = [child for child in psutil.Process(parent.pid).children() if child not in workers]
        parent.kill()
        _, alive = psutil.wait_procs(workers, timeout=WALL)
        lived_on = [child.is_running() for child in children]
    assert (len(workers), alive, lived_on) == (2, [], [True])


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="cannot fork")
def test_a_child_that_leaves_the_block_of_a_pool_leaves_the_pool_alone() -> None:
    program = (
        "import os, sys\n"
        "from fedstack.service.pool.worker_pool import local_worker_pool\n"
        "with local_worker_pool(1) as pool:\n"
        "    if os.fork() == 0:\n"
        "        sys.exit()\n"
        "    os.wait()\n"
        "    assert '1 of them alive' in repr(pool), pool\n"
        "    assert sorted(os.listdir(pool._folder)) == ['0.sock', '0.sock-s']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WALL)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_ctrl_c_again_and_again_while_a_pool_is_closed_leaves_no_files(tmp_path: Path) -> None:
    with parent_with_a_pool(tmp_path) as (parent, workers):
        for worker in workers:
            worker.suspend()  # so that the pool waits for them
        deadline = time.monotonic() + WALL
        while parent.poll() is None and time.monotonic() < deadline:
            parent.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(0.2)
        for worker in workers:
            worker.resume()
        wait_for(lambda: not list(tmp_path.iterdir()))
        _, alive = psutil.wait_procs(workers, timeout=WALL)
    assert alive == []


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="counts files otherwise")
def test_pools_that_are_dropped_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def drop_one() -> list[psutil.Process]:
        pool = local_worker_pool(1)
        return [psutil.Process(pid) for pid in pool.pids]

    threads, files = threading.active_count(), psutil.Process().num_fds()
    processes = [process for _ in range(3) for process in drop_one()]
    gc.collect()
    wait_for(lambda: not any(process.is_running() for process in processes))
    wait_for(lambda: threading.active_count() <= threads)
    wait_for(lambda: not list(tmp_path.iterdir()))
    wait_for(lambda: psutil.Process().num_fds() <= files)


def test_a_pool_lives_as_long_as_a_context_over_it() -> None:
    context = fedstack.create_sync_remote_execution_context(local_worker_pool(1))
    gc.collect()
    leaf = fedstack.python_computation(np.int64, np.int64)(lambda value: value + 1)

    @fl.federated_computation(CLIENT_INTS)
    def everywhere(values: Any) -> Any:
        return fl.federated_map(leaf, values)

    with fedstack.use_context(context):
        assert list(everywhere([1, 2])) == [2, 3]
    context.close()


def test_a_pool_that_gets_no_thread_to_read_what_workers_say_leaves_no_worker_behind(
    thread_starts: ThreadStarts,
) -> None:
    before = set(psutil.Process().children())
    thread_starts.left = 1
    with pytest.raises(errors.ResourceLimitError, match="start another thread"):
        local_worker_pool(2)
    assert set(psutil.Process().children()) == before
