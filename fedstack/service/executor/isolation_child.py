"""The program of a child process that runs a phase for some of the phase's clients; see `isolated_phase.py`.

The child reads from standard input: `ChildOptions`, the length of a `PhaseRequest`, the request, and the bytes that
follow the request. It reports to standard output, as lines of JSON: first each client and function that it is about to
run, then that it runs all clients together, and finally that it is done or has failed. If the child ends without a
final report, the last reported work crashed the child. The results of clients never leave the child.

A child that `serves` runs one range of clients after the other instead, and writes to standard output which clients
are running, and what each range has contributed. If it ends during a range, one of the running clients crashed it.

The child uses neither gRPC nor sockets, and admits only functions that the worker admits.
"""

import asyncio
import faulthandler
import json
import os
import pickle
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import CLIENTS, ExecutorFactory, get_context_stack
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.folds.aggregations import partial_states, slice_inputs
from fedstack.executors.remote.phase_messages import ReceivedPhase
from fedstack.executors.remote.phase_results import write_result
from fedstack.executors.survivors.ending import Ending
from fedstack.executors.survivors.telling_leaves import MAX_NAME, TellingLeaves
from fedstack.executors.worker.phase_pipeline import PhaseHost, admit, enter_tolerance
from fedstack.executors.worker.receiving import receive
from fedstack.foundations.segments import Rows, Segment
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.held_values import phases_in
from fedstack.service.executor.service_core import LimitedAdmission
from fedstack.service.host.limits import ServiceLimits
from fedstack.transport.wire.parcels import Parcel, incoming_of
from fedstack.transport.wire.status import details_of

LENGTH = struct.Struct("<Q")
# The first client of a range to run, and the index after the last.
RANGE = struct.Struct("<QQ")
# What a child that serves writes: one of these, followed by two numbers.
WRITTEN = struct.Struct("<BQQ")
# A client is about to run a function, or has run it; the second number is 0.
BEGUN, ENDED = 0, 1
# The answer to a range, or the failure of the phase. The numbers are the lengths of what follows: a header and data.
DONE, FAILED = 2, 3
# The child terminates itself this long after its time limit, in case the parent no longer exists.
_SPARE_SECONDS = 5.0
_MOST_LIKELY_VICTIM = "1000"


@attrs.frozen
class ChildOptions:
    """The options of a child process.

    Attributes:
      clients: The clients to run, as indices into the computation's clients.
      seconds: The time limit.
      threads: The maximum number of threads.
      policy: The leaf computations that the child may load; the same as the worker's policy.
      limits: The limits of the worker.
      serves: Whether the child serves ranges of clients, instead of running `clients` once.
    """

    clients: range
    seconds: float
    threads: int
    policy: CarrierPolicy
    limits: ServiceLimits
    serves: bool = False


class Told:
    """Writes the reports of a child, one per line, and skips repeated reports.

    Args:
      file: The descriptor of the file for reports.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._last: dict[str, object] = {}

    def __call__(self, **what: object) -> None:
        if what != self._last:
            self._last = what
            os.write(self.file, json.dumps(what).encode() + b"\n")


class _ChildHost(PhaseHost):
    """Runs phases in executors of a factory. The factory is never closed, because it ends with the process."""

    def __init__(self, admission: LimitedAdmission, factory: ExecutorFactory) -> None:
        super().__init__(admission)
        self._factory = factory

    def lend(self, clients: int) -> AbstractContextManager[PhaseRunner]:
        return nullcontext(phases_in(self._factory.create_executor({CLIENTS: clients})))


def main(options: ChildOptions, standard_input: BinaryIO) -> NoReturn:
    """Runs the phase, and ends the process."""
    told = Told(os.dup(1))
    os.dup2(2, 1)  # the output of functions must not mix with the reports
    if not options.serves:  # the parent limits the time of a child that serves, and ends it
        faulthandler.dump_traceback_later(options.seconds + _SPARE_SECONDS, exit=True)
    with suppress(OSError):
        # If memory runs out, the system should end this process and not the worker.
        Path("/proc/self/oom_score_adj").write_text(_MOST_LIKELY_VICTIM, encoding="ascii")
    try:
        asyncio.run(_run(options, standard_input, told))
        told(done=True)
    except BaseException as error:  # an error in this module, and not a crash caused by a client
        told(failed=f"{type(error).__name__}: {error}"[:MAX_NAME])
    os._exit(0)  # without exit handlers, which a worker would not run here either


async def _run(options: ChildOptions, standard_input: BinaryIO, tell: Told) -> None:
    (length,) = LENGTH.unpack(standard_input.read(LENGTH.size))
    received = await receive(incoming_of(Parcel(standard_input.read(length))), PhaseRequest)
    admission = LimitedAdmission(options.policy, options.limits)
    factory = local_executor_factory(max_concurrent_clients=options.threads)
    inside = SyncExecutionContext(factory)  # for computations called in leaf functions
    scope = admission.scope.replace(environment=lambda: get_context_stack().install(inside))
    host = _ChildHost(admission, factory)
    with scope.entered():
        admitted = await admit(received, host)
        for buffer in admitted.unpacker.buffers:
            buffer[:] = standard_input.read(len(buffer))
        admitted.unpacker.finish()
        ranges: queue.SimpleQueue[range] = queue.SimpleQueue()
        ending = Ending(leaves_out=True)
        threading.Thread(target=_read_ranges, args=(standard_input, ranges, ending), daemon=True).start()
        await admission.load(admitted.leaves)
    if options.serves:
        with scope.replace(leaves=TellingLeaves(admission.leaves, _telling_clients(tell.file))).entered():
            enter_tolerance(received.message, ending)
            with os.fdopen(tell.file, "wb") as output:
                await _serve(admitted.phase, host, ranges, output)
    with scope.replace(leaves=TellingLeaves(admission.leaves, tell)).entered():
        await _run_clients(admitted.phase, host, options, tell)


async def _run_clients(
    received: ReceivedPhase, host: PhaseHost, options: ChildOptions, tell: Callable[..., None]
) -> None:
    """Runs the clients one after another, and then together on threads, as a worker would."""
    everyone = options.clients
    alone = [range(client, client + 1) for client in everyone]
    for clients in alone if len(everyone) == 1 else [*alone, everyone]:
        offset = clients.start - received.clients.start
        inputs = slice_inputs(received.inputs, offset, offset + len(clients))
        tell(function="", **({"client": clients.start} if len(clients) == 1 else {"together": True}))
        # Errors of clients are reported when the worker runs the phase. Here, only crashes of the process matter.
        with suppress(Exception), host.lend(len(clients)) as engine:
            await engine.run_phase(received.phase, inputs, received.arguments, clients)


def _telling_clients(file: int) -> Callable[..., None]:
    """Returns a function that writes which clients run, and which functions have raised.

    Each call is a single write, which is not interleaved.
    """

    def tell(client: int | None = None, function: str | None = None, *, raised: bool = False) -> None:
        if client is not None:
            os.write(file, WRITTEN.pack(ENDED if function is None else BEGUN, client, raised))

    return tell


async def _serve(
    received: ReceivedPhase, host: PhaseHost, ranges: "queue.SimpleQueue[range]", output: BinaryIO
) -> NoReturn:
    """Runs one range of clients after the other, and writes the answers."""
    while True:
        clients = await asyncio.to_thread(ranges.get)
        offset, packer = clients.start - received.clients.start, Packer()
        inputs = slice_inputs(received.inputs, offset, offset + len(clients))
        try:
            with host.lend(len(clients)) as engine:
                result = await engine.run_phase(received.phase, inputs, received.arguments, clients)
            states = partial_states(received.phase, received.arguments)
            header, kind = write_result(received.phase, states, result, packer).SerializeToString(), DONE
        except Exception as error:
            header, kind, packer = details_of(error), FAILED, Packer()
        views = [view for segment in packer.segments for view in views_of(segment)]
        output.write(WRITTEN.pack(kind, len(header), sum(len(view) for view in views)))
        output.write(header)
        output.writelines(views)
        output.flush()


def views_of(segment: Segment) -> Sequence[memoryview]:
    """Returns the bytes of a segment, in order."""
    return list(segment.views()) if isinstance(segment, Rows) else [segment]


def _read_ranges(standard_input: BinaryIO, ranges: "queue.SimpleQueue[range]", ending: Ending) -> None:
    """Receives the ranges to serve, and ends the process when its parent has ended or has closed the pipe.

    An empty range ends the phase.
    """
    with suppress(OSError):
        # The file has read ahead. It keeps its lock while it reads, so nothing else may use it from now on.
        while len(read := standard_input.read(RANGE.size)) == RANGE.size:
            clients = range(*RANGE.unpack(read))
            if clients:
                ranges.put(clients)
            else:
                ending.end()
    os._exit(1)


def start() -> NoReturn:
    """Runs the phase that the worker writes to standard input."""
    with open(os.dup(0), "rb") as given, open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)  # functions that read standard input find it empty
        main(pickle.load(given), given)
