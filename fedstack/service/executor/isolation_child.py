"""Runs a phase for some of its clients in a process of their own; `isolation.py` starts it.

It is told what to run on standard input: the length of a `PhaseRequest`, that, and the bytes that belong to it. On
standard output it says, a line of JSON at a time, which client and which function it is about to run, and at last that
it is done, or has failed. If it ends before that, what it said last has ended it. Nothing that clients yield leaves it.

It has no gRPC and no socket. It lets in only what the worker that started it does.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import attrs

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.leaves.work_scope import current_scope, set_scope
from fedstack.computations.types.language import computation_pb2
from fedstack.executors.base.placed_executor import slice_inputs
from fedstack.executors.remote.phase_messages import ReceivedPhase, computations_of, read_phase
from fedstack.executors.stacks.factories import local_executor_factory
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.held_values import phase_executor
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.sessions import Session
from fedstack.service.server.limits import ServiceLimits

LENGTH = struct.Struct("<Q")
# How much later than its parent it gives up, for when that is no more.
_SPARE_SECONDS = 5.0
_MAX_NAME = 200
_MOST_LIKELY_VICTIM = "1000"


@attrs.frozen(kw_only=True)
class ChildOptions:
    """What a child is to do.

    Attributes:
      first_client: The first of its clients, counted over the whole federation.
      stop_client: The first that is not one of them any more.
      together: Whether they run as a worker runs them, on threads; else one after the other.
      seconds: How long it may take.
      threads: The most threads.
      modules: The modules into which references are followed.
      python_code: Whether functions by value are loaded.
      max_value_bytes: As of the worker's limits.
      max_clients: As of the worker's limits.
      max_steps: As of the worker's limits.
    """

    first_client: int
    stop_client: int
    together: bool
    seconds: float
    threads: int
    modules: Sequence[str]
    python_code: bool
    max_value_bytes: int
    max_clients: int
    max_steps: int

    @property
    def clients(self) -> range:
        """Its clients."""
        return range(self.first_client, self.stop_client)


class Told:
    """What a child says: each new thing in a line."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._last: dict[str, object] = {}

    def __call__(self, **what: object) -> None:
        if what != self._last:
            self._last = what
            os.write(self._file, json.dumps(what).encode() + b"\n")


class _TellingLeaf(BoundOperation):
    """Says of each call which client it is for."""

    def __init__(self, leaf: BoundOperation, tell: Callable[..., None]) -> None:
        self.name = leaf.name
        self.result = leaf.result
        self.prefers_columns = leaf.prefers_columns
        self._leaf = leaf
        self._tell = tell

    def call(self, argument: object, client: int | None = None) -> object:
        at_client = {} if client is None else {"client": client}
        self._tell(**at_client, function=self.name[:_MAX_NAME])
        return self._leaf.call(argument, client)


class _TellingLeaves(LoadedLeaves):
    """Leaves that say when they are called."""

    def __init__(self, leaves: LoadedLeaves, tell: Callable[..., None]) -> None:
        super().__init__()
        self._leaves = leaves
        self._tell = tell

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        return _TellingLeaf(self._leaves.load(computation), self._tell)


def main(options: ChildOptions, standard_input: BinaryIO) -> NoReturn:
    """Runs the phase, and ends the process."""
    told = Told(os.dup(1))
    os.dup2(2, 1)  # what functions print is not for who reads that
    faulthandler.dump_traceback_later(options.seconds + _SPARE_SECONDS, exit=True)
    with contextlib.suppress(OSError):
        # Where memory runs out the system ends this process and not the worker.
        Path("/proc/self/oom_score_adj").write_text(_MOST_LIKELY_VICTIM, encoding="ascii")
    try:
        asyncio.run(_run(options, standard_input, told))
        told(done=True)
    except BaseException as error:  # of ours: whoever comes here has ended nothing
        told(failed=f"{type(error).__name__}: {error}"[:_MAX_NAME])
    os._exit(0)  # what happens after its work is not a worker's either


async def _run(options: ChildOptions, standard_input: BinaryIO, tell: Callable[..., None]) -> None:
    (length,) = LENGTH.unpack(standard_input.read(LENGTH.size))
    request = PhaseRequest.FromString(standard_input.read(length))
    limits = ServiceLimits(
        max_value_bytes=options.max_value_bytes, max_clients=options.max_clients, max_steps=options.max_steps
    )
    policy = CarrierPolicy(modules=options.modules, python_code=options.python_code)
    core = ServiceCore(local_executor_factory(max_threads=options.threads), limits, policy)
    unpacker = core.unpacker(request.clients)
    received = read_phase(request, unpacker, _nothing_is_kept)
    for buffer in unpacker.buffers:
        buffer[:] = standard_input.read(len(buffer))
    unpacker.finish()
    threading.Thread(target=_end_with_parent, args=(standard_input,), daemon=True).start()
    session = core.open({}, None)
    await core.run(session, _run_clients(core, session, request, received, options, tell))


async def _run_clients(
    core: ServiceCore,
    session: Session,
    request: PhaseRequest,
    received: ReceivedPhase,
    options: ChildOptions,
    tell: Callable[..., None],
) -> None:
    for computation in computations_of(request):
        await core.admit(computation, computation.ByteSize())
    scope = current_scope()
    assert scope.leaves is not None, "work of a session has some"
    set_scope(attrs.evolve(scope, leaves=_TellingLeaves(scope.leaves, tell)))  # of this task only
    everyone = options.clients
    for clients in [everyone] if options.together else [range(client, client + 1) for client in everyone]:
        offset = clients.start - received.clients.start
        inputs = slice_inputs(received.inputs, offset, offset + len(clients))
        tell(client=clients.start, function="")
        # An error of a client's is found where the phase runs; here only those count that leave none.
        with contextlib.suppress(Exception), core.sessions.executor_for(session, len(clients)) as stack:
            await phase_executor(stack).run_phase(received.phase, inputs, received.arguments, clients)


def _nothing_is_kept(value_id: str) -> Any:
    raise AssertionError(f"{value_id!r} is in a session of another process")


def _end_with_parent(standard_input: BinaryIO) -> None:
    """Ends the process when its parent has, or has let go of it."""
    with contextlib.suppress(OSError):
        os.read(standard_input.fileno(), 1)  # not through the file, whose lock this thread would hold
    os._exit(1)


def start() -> NoReturn:
    """Does what the command line and standard input say."""
    with open(os.dup(0), "rb") as given, open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)  # for functions that read it
        main(ChildOptions(**json.loads(sys.argv[1])), given)
