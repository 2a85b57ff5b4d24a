"""Finds the client of a phase that ends its process, in processes where that costs nobody anything.

The clients have ended workers (`lost_ranges.py` has the whole story), and so this worker runs none of them itself, nor
loads their functions. Each child says which client it is about to run, so a child that ends names one:

1. Those that a heartbeat named, in a few children side by side, each client in one of its own.
2. All, in as many children, one client after the other. Whoever a child ended with runs once more, alone; of several
   the first counts, as it would in one process.
3. If each survives alone: all of them in one child, on threads as a worker runs them. If that ends, its halves, and
   theirs, until neither half ends a child: those clients end their process together, as where memory runs out.

So 40 clients with one that crashes take two or three children. How many there are at a time, over all searches of a
worker, and how long one takes, is limited. What children compute is thrown away, and so are their errors: if nobody is
found, the phase is run as if nothing had been.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import NoReturn

from fedstack.computations.codec.packing import Packer
from fedstack.errors import LeafError
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads, off_loop
from fedstack.executors.remote.phases.phase_messages import ReceivedPhase, write_values
from fedstack.executors.worker.phase_pipeline import PhaseHost, admit
from fedstack.executors.worker.receiving import Received
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.process_endings import ending_of, users_lines_in
from fedstack.foundations.segments import Rows
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.isolation.isolation import Death, IsolatedRun
from fedstack.service.executor.isolation.isolation_child import LENGTH
from fedstack.service.executor.sessions.service_core import ServiceCore

_logger = logging.getLogger(__name__)
_MOST_SUSPECTS = 100
# As the system ends a process where memory runs out: that may be another's doing.
_KILLED = -9


class _ForChildren(PhaseHost):
    """Admits phases that are run elsewhere, by processes that have nothing but what they are sent."""

    def lend(self, clients: int) -> NoReturn:
        raise AssertionError("a search runs nothing in its own process")


async def search_phase(core: ServiceCore, host: PhaseHost, received: Received[PhaseRequest]) -> None:
    """Looks for the clients of a phase that end their process.

    Args:
      core: The service.
      host: Where the phase would run.
      received: The phase.

    Raises:
      LeafError: If there are such clients.
    """
    request = received.message
    admitted = await admit(received, _ForChildren(host.admission))
    await received.fill(admitted.unpacker)
    content = await off_loop(lambda: _content(request, admitted.phase))
    with host.lend(request.clients) as engine:
        threads = engine.leaf_threads
    clients = admitted.phase.clients
    search = _Search(core, content, threads.max_threads if threads else CORES)
    try:
        await Deadline(core.limits.isolation_seconds).wait(
            search.find(clients, sorted(set(request.suspect) & set(clients))[:_MOST_SUSPECTS])
        )
    except asyncio.TimeoutError:
        _logger.warning(
            "None of the clients %d to %d ended its process within %g s; for longer "
            "searches start the worker with a larger --isolation-seconds",
            clients.start,
            clients.stop - 1,
            core.limits.isolation_seconds,
        )
    finally:
        search.close()


def _content(request: PhaseRequest, received: ReceivedPhase) -> Sequence[bytes | memoryview]:
    """Returns what children read: the phase, with elements in place of references, which they cannot read."""
    folds = request.fold
    captures = [capture for fold in folds for function in fold.function for capture in function.capture]
    for value in (*request.input, *(value for fold in folds for value in fold.argument), *captures):
        value.ClearField("value")
    packer = Packer()
    write_values(request, received.phase, received.inputs, received.arguments, packer)
    header = request.SerializeToString()
    views = [segment.views() if isinstance(segment, Rows) else [segment] for segment in packer.segments]
    return [LENGTH.pack(len(header)), header, *itertools.chain.from_iterable(views)]


class _Search:
    """One search.

    Args:
      core: The rules.
      content: What children read.
      threads: The most threads of one child.
    """

    def __init__(self, core: ServiceCore, content: Sequence[bytes | memoryview], threads: int) -> None:
        self._core = core
        self._content = content
        self._ends = time.monotonic() + core.limits.isolation_seconds
        self._side_by_side = max(1, min(CORES, core.limits.max_isolated))
        self._threads = LeafThreads(self._side_by_side)
        self._options = {
            "threads": threads,
            "modules": list(core.policy.modules),
            "python_code": core.policy.python_code,
            "runtimes": list(core.policy.runtimes),
            "max_value_bytes": core.limits.max_value_bytes,
            "max_clients": core.limits.max_clients,
            "max_steps": core.limits.max_steps,
        }

    async def find(self, clients: range, suspects: Sequence[int]) -> None:
        """Raises the error for the clients that end their process, if there are any."""
        for parts in ([range(client, client + 1) for client in suspects], _parts(clients, self._side_by_side)):
            while parts:
                found = await self._first_death(parts)
                if found is None:
                    break
                part, death = found
                if death.client is None:
                    raise _error_of_one(death, None)
                is_alone = death.client == part.start and (len(parts) == 1 or death.code != _KILLED)
                alone = death if is_alone else await self._run(range(death.client, death.client + 1))
                if alone is not None:
                    raise _error_of_one(alone, death.client)
                # It ends its process only with others, or while others run; clients after it have not run yet.
                rest = range(death.client + 1, part.stop)
                parts = [*([rest] if rest else []), *(later for later in parts if later.start > part.start)]
        together = await self._run(clients, together=True) if len(clients) > 1 else None
        if together is not None:
            raise _error_of_several(*await self._smallest(clients, together))

    async def _first_death(self, parts: Sequence[range]) -> tuple[range, Death] | None:
        """Runs parts side by side; returns the first that has ended its child."""
        runs = [asyncio.ensure_future(self._run(part)) for part in parts]
        try:
            for part, run in zip(parts, runs):
                death = await run
                if death is not None:
                    return part, death
            return None
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def _smallest(self, clients: range, death: Death) -> tuple[range, Death]:
        """Returns the smallest part of clients that ends a child where neither of its halves does."""
        while len(clients) > 1:
            for half in _parts(clients, 2):
                found = await self._run(half, together=True)
                if found is not None:
                    clients, death = half, found
                    break
            else:
                break
        return clients, death

    async def _run(self, clients: range, *, together: bool = False) -> Death | None:
        """Runs some clients in a child."""
        async with self._core.isolated:
            options = {
                **self._options,
                "first_client": clients.start,
                "stop_client": clients.stop,
                "together": together,
                "seconds": max(1.0, self._ends - time.monotonic()),
            }
            child = IsolatedRun(options, self._content)
            return await self._threads.run(child.run, child.cancel)

    def close(self) -> None:
        """Lets the threads end."""
        self._threads.close()


def _parts(clients: range, count: int) -> list[range]:
    """Cuts clients into so many parts or fewer, in their order, none of them empty."""
    bounds = [clients.start + len(clients) * index // count for index in range(count + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]


def _error_of_one(death: Death, client: int | None) -> LeafError:
    what = repr(death.function) if death.function else "a computation"
    if client is None:
        what, where = "loading the functions of a phase", ""
    else:
        where = f"; at client {client}"
    return LeafError(
        f"{what} ended its process with {ending_of(death.code)}{where}{users_lines_in(death.said)}",
        computation_name=death.function,
        client_index=client,
    )


def _error_of_several(clients: range, death: Death) -> LeafError:
    name = repr(death.function) if death.function else "a computation"
    which = f"clients {clients.start} to {clients.stop - 1} together" if len(clients) > 1 else f"client {clients.start}"
    return LeafError(
        f"{name} ended its process with {ending_of(death.code)} at {which}, and at none of them alone"
        f"{users_lines_in(death.said)}",
        computation_name=death.function,
        client_index=clients.start if len(clients) == 1 else None,
    )
