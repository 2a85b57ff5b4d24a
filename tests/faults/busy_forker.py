"""Run as a script: keeps contexts and a server busy on many threads, and forks; says what became of the children.

    busy_forker.py client|server TARGET CHILDREN

A server is busy in the process too, if it is to be one.
"""

import collections
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from fault_leaves import doubled_sum, mean_wobble, models

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.service import ExecutorService, GrpcServer, ServerThread

WALL = 20.0
NUMBERS = [0.1, 0.2, 0.3]


class Busy:
    """Threads that call computations again and again, and what came of it."""

    def __init__(self, target: str, own_target: str | None) -> None:
        self.rounds: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self.stop = False
        remote = fedstack.create_sync_remote_execution_context(target)
        self.local = fedstack.create_sync_local_execution_context(clients_per_thread=1)
        works: dict[str, Callable[[], object]] = {
            "small": lambda: in_context(remote, lambda: mean_wobble(NUMBERS)),
            "large": lambda: in_context(remote, lambda: models([1.0, 2.0])),
            "new": lambda: in_new(fedstack.create_sync_remote_execution_context(target)),
            "local": lambda: in_context(self.local, lambda: mean_wobble(NUMBERS * 5)),
            "local too": lambda: in_context(self.local, lambda: mean_wobble(NUMBERS * 6)),
        }
        if own_target is not None:
            own = fedstack.create_sync_remote_execution_context(own_target)
            works["served"] = lambda: in_context(own, lambda: doubled_sum([1, 2]))
        self._names = set(works)
        for name, work in works.items():
            threading.Thread(target=self._work, args=(name, work), daemon=True).start()

    def _work(self, name: str, work: Callable[[], object]) -> None:
        while not self.stop:
            try:
                work()
            except Exception as error:
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
            self.rounds[name] += 1

    def wait(self) -> None:
        """Returns when each thread has been round twice more: the second of these has begun later than this."""
        before = collections.Counter(self.rounds)
        deadline = time.monotonic() + WALL
        while not all(self.rounds[name] - before[name] >= 2 for name in self._names):
            assert time.monotonic() < deadline, (before, self.rounds)
            time.sleep(0.01)


def in_context(context, work):
    with fedstack.use_context(context):
        return work()


def in_new(context):
    with context:
        return in_context(context, lambda: mean_wobble(NUMBERS))


def forked(child: Callable[[], None]) -> int | str:
    """Forks, and returns how the child ended."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + WALL
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"


def worked(method: str) -> int | str:
    """Starts a process as `multiprocessing` does, and returns how it ended."""
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join(WALL)
    if process.exitcode is None:
        process.kill()
        return "hung"
    return process.exitcode


def served_target() -> str:
    policy = CarrierPolicy(modules=["*"], python_code=True)
    server = ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory(), policy=policy)], port=0))
    server.start()
    return server.target


def main(role: str, target: str, children: int) -> None:
    busy = Busy(target, served_target() if role == "server" else None)
    expected = float(in_context(busy.local, lambda: mean_wobble(NUMBERS)))

    def run_locally(context):
        assert float(in_context(context, lambda: mean_wobble(NUMBERS))) == expected

    def run_in_new():
        with fedstack.create_sync_local_execution_context(clients_per_thread=1) as context:
            run_locally(context)

    quick: dict[str, Callable[[], int | str]] = {
        "nothing": lambda: forked(lambda: None),
        "new context": lambda: forked(run_in_new),
        "inherited context": lambda: forked(lambda: run_locally(busy.local)),
        "exec": lambda: forked(lambda: os.execv("/bin/true", ["true"])),
        "preexec_fn": lambda: subprocess.run(["true"], preexec_fn=lambda: None, timeout=WALL).returncode,
        "posix_spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1],
        "multiprocessing fork": lambda: worked("fork"),
    }
    slow: dict[str, Callable[[], int | str]] = {
        "sys.exit": lambda: forked(lambda: sys.exit(0)),
        "multiprocessing spawn": lambda: worked("spawn"),
        "multiprocessing forkserver": lambda: worked("forkserver"),
    }
    busy.wait()
    ends: dict[str, collections.Counter[int | str]] = collections.defaultdict(collections.Counter)
    for number in range(children):
        each = slow if number % 25 == 0 else quick
        name = list(each)[(number // 25 if each is slow else number) % len(each)]
        ends[name][each[name]()] += 1
    busy.wait()
    busy.stop = True
    print(json.dumps({"ends": ends, "errors": busy.errors, "rounds": busy.rounds}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
