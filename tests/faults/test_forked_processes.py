"""Processes that fork: gRPC does not survive that, and what uses it says so; all else goes on."""

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fault_stacks import status_of
from processes import Fleet

from fedstack.errors import ClosedError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.caches import SharedCache
from fedstack.transport.peers.fork_guard import ForkGuard

FOLDER = Path(__file__).parent
WALL = 30.0


def test_in_the_child_remote_contexts_name_the_fork_and_local_ones_go_on(fleet: Fleet) -> None:
    client = fleet.start_client("fork_after_rounds", target=fleet.start().target)
    child, parent = client.listen()["answer"]
    for inherited_or_new in child[:2]:
        assert inherited_or_new.startswith(f"ClosedError: This process was forked (os.fork) from process {client.pid}")
        assert "multiprocessing's 'spawn'" in inherited_or_new
    assert child[2:] == parent[2:]
    assert len(set(parent)) == 1


def test_a_child_may_dial_if_its_parent_has_not(fleet: Fleet) -> None:
    here, at_the_worker = fleet.start_client("fork_before_rounds", target=fleet.start().target).listen()["answer"]
    assert here == at_the_worker


def test_the_use_of_grpc_is_refused_to_copies_of_a_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    use = ForkGuard()
    use.check()
    use.begin()
    use.begin()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ClosedError, match="forked"):
        use.begin()


def run_script(name: str, *arguments: str, **environment: str) -> list[str]:
    """Runs a script of this folder in a process of its own, and returns the lines that it prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, env={**variables, **environment}, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    return done.stdout.splitlines()


def check_children(role: str, target: str, children: int) -> None:
    found = json.loads(run_script("busy_forker.py", role, target, str(children))[-1])
    assert {name: set(ends) for name, ends in found["ends"].items()} == {name: {"0"} for name in found["ends"]}
    assert sum(sum(ends.values()) for ends in found["ends"].values()) == children
    assert found["errors"] == []


@pytest.mark.long
@pytest.mark.parametrize("role", ["client", "server"])
def test_children_of_a_busy_process_live_and_work_and_so_does_their_parent(fleet: Fleet, role: str) -> None:
    check_children(role, fleet.start().target, 15)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", ["client", "server"])
def test_hundreds_of_children_of_a_busy_process_live_and_work(fleet: Fleet, role: str) -> None:
    check_children(role, fleet.start().target, 300)


@pytest.mark.long
def test_locks_that_other_threads_held_are_free_in_the_child() -> None:
    found, held = map(json.loads, run_script("lock_walker.py"))
    assert held == ["control"], "renew these, see foundations/after_fork.py"
    # Else it walks past them; the I/O loop is found as the clock of a fleet.
    for path in ("_limit", "_templates", "plans", "clock.__self__"):
        assert any(path in one for one in found)


SERVES_AND_FORKS = """
import os, pathlib, sys
import fedstack
from fedstack.service import ExecutorService, GrpcServer, ServerThread

service = ExecutorService(fedstack.local_executor_factory())
where = {"unix_socket": pathlib.Path(sys.argv[1])} if len(sys.argv) > 1 else {"port": 0}
server = ServerThread(GrpcServer([service], **where))
server.start()
print(server.target, flush=True)
sys.stdin.readline()
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["port", "socket"])
def test_who_dials_a_server_that_was_killed_sees_it_though_a_child_of_its_lives_on(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-c", SERVES_AND_FORKS, *([str(path)] if kind == "socket" else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        target = server.stdout.readline().strip()
        with dial(target) as connection:
            assert connection.recv(1)  # what a server says first
            server.stdin.write("go on\n")
            server.stdin.flush()
            assert server.stdout.readline() == "forked\n"
            assert status_of(target).session == []  # it serves on
            server.kill()
            while connection.recv(1000):
                pass
            server.wait(WALL)  # it lets go of one socket after the other
        with pytest.raises(ConnectionRefusedError):
            dial(target)


def dial(target: str) -> socket.socket:
    if not target.startswith("unix:"):
        host, _, port = target.rpartition(":")
        return socket.create_connection((host, int(port)), WALL)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(WALL)
    try:
        connection.connect(target.removeprefix("unix:"))
    except OSError:
        connection.close()
        raise
    return connection


def test_a_cache_that_was_being_changed_begins_empty_in_the_child_and_others_stay() -> None:
    idle, busy = SharedCache[str, int](3, 100), SharedCache[str, int](3, 100)
    for cache in (idle, busy):
        cache.put("a", 1, 60)
    busy._lock.acquire()
    for cache in (idle, busy):
        cache.renew()
    assert (idle.get("a"), idle.bytes) == (1, 60)
    assert (busy.get("a"), busy.bytes) == (None, 0)


def test_what_only_threads_of_the_parent_had_is_given_up_in_the_child_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python drops what such threads had before anything can be renewed, so that their locks are held then."""
    threads = [LeafThreads(1)]
    pool = threads[0]._pool
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            holding.set()
            release.wait(WALL)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(WALL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        threads.clear()
    release.set()
    holder.join()


SAYS_WHAT_GRPC_SEES = """
class Import:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc._cython.cygrpc":
            print([os.environ.get(name) for name in NAMES])


sys.meta_path.insert(0, Import())
"""


@pytest.mark.parametrize("given", [{}, {"GRPC_ENABLE_FORK_SUPPORT": "1"}, {"GRPC_VERBOSITY": "INFO"}])
def test_grpc_is_told_to_be_quiet_and_to_leave_forks_alone_and_nobody_else_is(given: dict[str, str]) -> None:
    names = ["GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT"]
    program = f"import os, sys, fedstack; NAMES = {names}\n{SAYS_WHAT_GRPC_SEES}\n" + (
        "fedstack.create_sync_remote_execution_context('localhost:1').close()\n"
        "print([os.environ.get(name) for name in NAMES])"
    )
    variables = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**variables, **given}, stdout=subprocess.PIPE, text=True, check=True
    )
    seen, afterwards = map(ast.literal_eval, done.stdout.splitlines())
    assert seen == [given.get(name, value) for name, value in zip(names, ["NONE", "0"])]
    assert afterwards == [given.get(name) for name in names]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "given", "warnings"),
    [("grpc", {}, 1), ("fedstack", {}, 0), ("grpc", {"GRPC_ENABLE_FORK_SUPPORT": "0"}, 0)],
)
def test_a_process_that_forks_is_told_once_that_it_imported_grpc_too_early(
    first: str, given: dict[str, str], warnings: int, fleet: Fleet
) -> None:
    lines = run_script("early_importer.py", first, fleet.start().target, **given)
    assert len(lines) == warnings
    assert all("set GRPC_ENABLE_FORK_SUPPORT=0 in the environment before grpc is imported" in line for line in lines)
