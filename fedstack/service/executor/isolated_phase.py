"""Finds the clients of a phase that crash their process, by running them in separate child processes.

Workers have crashed while running these clients (see `membership/ledger.py`), so this worker neither runs the clients
itself nor loads their functions. A child process reports which client it is about to run, and a `CulpritSearch` decides
which clients the next child runs. For example, finding the one crashing client among 40 takes two children. The number
of concurrent children of a worker and the duration of a search are limited. The results and errors of the children are
discarded: if no crashing client is found, the phase runs as if there had been no search.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any, NoReturn

from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import LeafError
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads, off_loop
from fedstack.executors.remote.phase_copies import values_of
from fedstack.executors.remote.phase_messages import ReceivedPhase, write_values
from fedstack.executors.worker.phase_pipeline import PhaseHost, admit
from fedstack.executors.worker.receiving import Received
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.process_endings import LINES_KEPT, ending_of, users_lines_in, wait_for_end
from fedstack.membership.search import Culprit, CulpritSearch, Ended
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.isolation_child import LENGTH, ChildOptions, views_of
from fedstack.service.executor.service_core import ServiceCore

_logger = logging.getLogger(__name__)
_READING_SECONDS = 2.0
# A child can import the same modules as this process, but none from its working directory. It is a new interpreter and
# not a fork, because gRPC runs threads in this process.
_PROGRAM = (
    "import sys; sys.path[:1] = [path for path in sys.path[:1] if path]; "
    "from fedstack.service.executor.isolation_child import start; start()"
)


class ForChildren(PhaseHost):
    """Admits phases that run in child processes, which have access only to the data sent to them."""

    def lend(self, clients: int) -> NoReturn:
        raise AssertionError("a search must not run clients in its own process")


async def search_phase(core: ServiceCore, host: PhaseHost, received: Received[PhaseRequest]) -> None:
    """Searches for clients of a phase that crash their process.

    Args:
      core: The shared state of the service.
      host: The host on which the phase would run.
      received: The request of the phase.

    Raises:
      LeafError: If a client, or several clients together, crash their process.
    """
    request = received.message
    admitted = await admit(received, ForChildren(host.admission))
    await received.fill(admitted.unpacker)
    content = await off_loop(lambda: content_of(request, admitted.phase))
    with host.lend(request.clients) as engine:
        leaf_threads = engine.leaf_threads
    clients, deadline = admitted.phase.clients, Deadline(core.limits.isolation_seconds)
    policy, most_threads = CarrierPolicy(*core.policy.rules), leaf_threads.max_threads if leaf_threads else CORES
    threads = LeafThreads(1)

    async def run(some: range) -> Ended | None:
        async with core.isolated:
            left = max(1.0, deadline.left or 0.0)
            child = IsolatedRun(ChildOptions(some, left, most_threads, policy, core.limits), content)
            return await threads.run(child.run, child.cancel)

    try:
        found = await deadline.wait(CulpritSearch(clients, request.suspect, sees=True).drive(run))
    except asyncio.TimeoutError:
        found = None
        _logger.warning(
            "Searched clients %d to %d for %g s without finding a client that crashes its process; to search "
            "longer, start the worker with a larger --isolation-seconds",
            clients.start,
            clients.stop - 1,
            core.limits.isolation_seconds,
        )
    finally:
        threads.close()
    if found is not None:
        raise _error_of(found)


def content_of(request: PhaseRequest, received: ReceivedPhase) -> Sequence[bytes | memoryview]:
    """Returns the input for child processes: the phase, with each reference replaced by the elements it refers to."""
    for value in values_of(request):
        value.ClearField("value")
    for value in request.input:
        value.ClearField("part")
    packer = Packer()
    write_values(request, received.phase, received.inputs, received.arguments, packer)
    header = request.SerializeToString()
    return [LENGTH.pack(len(header)), header, *itertools.chain.from_iterable(map(views_of, packer.segments))]


def _error_of(found: Culprit) -> LeafError:
    name, said = found.ended.cause
    what, units = repr(name) if name else "a computation", found.units
    if not units:
        what, where = "loading the functions of a phase", ""
    elif len(units) == 1:
        where = f"; at client {units.start}"
    else:
        where = (
            f" when run for clients {units.start} to {units.stop - 1} together, but not for any of these clients alone"
        )
    return LeafError(
        f"{what} crashed its process with {ending_of(found.ended.status or 0)}{where}{users_lines_in(said)}",
        computation_name=name,
        client_index=units.start if len(units) == 1 else None,
    )


class IsolatedRun:
    """A child process that runs a phase for some of the phase's clients.

    Args:
      options: The options of the child.
      content: The input of the child, after the options.
    """

    def __init__(self, options: ChildOptions, content: Sequence[bytes | memoryview]) -> None:
        self._content = [pickle.dumps(options), *content]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(self) -> Ended | None:
        """Runs the child, and returns how the clients crashed it, or `None` if it completed. Blocks the calling thread.

        The cause in the result consists of the name of the last function, if known, and the last lines of the child's
        output.
        """
        told: dict[str, Any] = {}
        said: deque[str] = deque(maxlen=LINES_KEPT)
        with self._lock:
            if self._cancelled:
                return None
            process = self._process = start_child()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            reading(process.stdout, lambda line: told.update(json.loads(line))),
            reading(process.stderr, lambda line: said.append(line.decode(errors="replace"))),
        ]
        try:
            with contextlib.suppress(OSError):  # the child may already have ended
                process.stdin.writelines(self._content)
                process.stdin.flush()  # the pipe stays open, so that the child notices when this process ends
            wait_for_end(process)
        finally:
            self._kill()
            status = process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
        for reader in readers:
            reader.join(_READING_SECONDS)
        if self._cancelled or "done" in told or "failed" in told:
            return None
        client = told.get("client")
        among = None if "together" in told else range(0) if client is None else range(client, client + 1)
        return Ended(status, among, (told.get("function", ""), tuple(said)))

    def cancel(self) -> None:
        """Kills the child if it is running, and prevents `run` from starting a child."""
        with self._lock:
            self._cancelled = True
        self._kill()

    def _kill(self) -> None:
        """Kills the child and its descendants, unless the child was already reaped and its id may have been reused."""
        with self._lock:
            if self._process is not None:
                kill_child(self._process)


def start_child() -> "subprocess.Popen[bytes]":
    """Starts a child process."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        # In a separate session, the child can be killed with its descendants, and Ctrl-C does not reach it.
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def kill_child(process: "subprocess.Popen[bytes]") -> None:
    """Kills a child and its descendants, unless the child was already reaped and its id may have been reused."""
    if process.returncode is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def reading(pipe: IO[bytes], take: Callable[[bytes], object]) -> threading.Thread:
    """Starts a thread that reads the lines of a pipe. It may outlive the child if the child's descendants do."""

    def read() -> None:
        with pipe, contextlib.suppress(OSError, ValueError):
            for line in pipe:
                take(line)

    thread = threading.Thread(target=read, name="fedstack-isolated", daemon=True)
    thread.start()
    return thread
