"""Defines the functions that an engine's worker calls to run a phase for some clients or to merge contributions.

Phases may contain functions sent by value, since anyone who can submit work to an engine can run any code there.
"""

import functools
import itertools
import os
import platform
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypedDict

from fedstack._version import __version__
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import ClientCounter, current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, get_context_stack
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.contexts.invocation import telling_path
from fedstack.errors import ProtocolVersionError
from fedstack.executors.base.phase_engine import PhaseEngine, PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.base.verb_executor import phases_of
from fedstack.executors.composing_executor import ComposedPhases
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.concurrency.sync_driver import SyncDriver
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.folds.aggregations import FoldArguments, partial_states
from fedstack.executors.remote.phase_results import read_result
from fedstack.executors.resource_factory import borrow
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.executors.worker.phase_pipeline import PhaseHost, admit, answer, enter_tolerance, load, reply
from fedstack.executors.worker.receiving import Admission, receive
from fedstack.foundations.segments import Memory, memory_of
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.transport.wire.parcels import Incoming, Parcel, incoming_of
from fedstack.transport.wire.status import code_of, details_of, message_of

_MOST_STACKS = 4
_Part: TypeAlias = Sequence[Memory]


class Settings(TypedDict):
    """The versions and settings of the sending process, as plain data that every version of fedstack can read.

    Attributes:
      python: The sender's version of Python.
      fedstack: The sender's version of fedstack.
      max_concurrent_clients: The maximum number of functions that run at the same time; `None` for the default of
        local stacks.
      cores: The maximum number of cores on which functions compute at the same time; `None` for all cores.
    """

    python: str
    fedstack: str
    max_concurrent_clients: int | None
    cores: int | None


class Note(TypedDict):
    """The part of an answer that describes the outcome, as plain data that every version of fedstack can read.

    Attributes:
      place: The machine and the process that ran the phase.
      error: The code, message and details of a status if the phase failed; otherwise `None`.
      seconds: The time that the phase took, in seconds.
      at_once: The maximum number of clients that ran at the same time.
      failed: The number of clients that failed, if failures are tolerated.
    """

    place: str
    error: tuple[int, str, bytes] | None
    seconds: float
    at_once: int
    failed: int


# The serialized response to a phase, and the memory of its segments. Both are empty if the phase failed.
Content: TypeAlias = tuple[bytes, _Part]
Answer: TypeAlias = tuple[Note, Content]


def settings_of_sender(max_concurrent_clients: int | None, cores: int | None) -> Settings:
    """Returns the settings for phases that this process sends."""
    return Settings(
        python=_python_version(), fedstack=__version__, max_concurrent_clients=max_concurrent_clients, cores=cores
    )


def run_phase(settings: Settings, header: bytes, *parts: _Part) -> Answer:
    """Runs a phase like `answer_phase`, but on the calling thread."""
    return _driven(settings, answer_phase(settings, header, *parts))


def run_merge(settings: Settings, header: bytes, clients: Sequence[int], *given: Any) -> Answer:
    """Merges contributions like `answer_merge`, but on the calling thread."""
    return _driven(settings, answer_merge(settings, header, clients, *given))


async def answer_phase(
    settings: Settings, header: bytes, *parts: _Part, progress: ClientCounter | None = None
) -> Answer:
    """Runs a phase in this process. If the phase fails, the answer contains the error.

    Args:
      settings: The settings of the sending process.
      header: The serialized phase.
      *parts: The memory of the phase's segments, in the order of the message.
      progress: Counts the clients of the phase.
    """
    return await _answered(settings, lambda process: _phase(process, header, parts), progress)


async def answer_merge(
    settings: Settings, header: bytes, clients: Sequence[int], *given: Any, progress: ClientCounter | None = None
) -> Answer:
    """Merges the contributions of consecutive ranges of clients to a phase, in this process.

    Args:
      settings: The settings of the sending process.
      header: The serialized phase, for no clients.
      clients: The number of clients in each range.
      *given: The content of each range's answer, followed by the memory of the phase's segments.
      progress: Counts clients, as in `answer_phase`. No clients run during a merge.
    """
    contents, parts = given[: len(clients)], given[len(clients) :]
    return await _answered(settings, lambda process: _merge(process, header, clients, contents, parts), progress)


def _driven(settings: Settings, work: Coroutine[Any, Any, Answer]) -> Answer:
    process = _process(settings.get("max_concurrent_clients"))  # another version may have other settings
    with process.scope.environment():
        return process.driver.run(work, inline=True)


async def _answered(
    settings: Settings, work: "Callable[[_Process], Awaitable[Parcel]]", progress: ClientCounter | None
) -> Answer:
    note = Note(place=f"{socket.gethostname()}, process {os.getpid()}", error=None, seconds=0.0, at_once=0, failed=0)
    begin, counts = time.perf_counter(), _MostRunning(progress)
    try:
        _check_versions(settings, note["place"])
        process = _process(settings["max_concurrent_clients"])
        with process.scope.replace(progress=counts, cores=settings["cores"]).entered():
            response = await work(process)
        note["seconds"], note["at_once"] = time.perf_counter() - begin, counts.most
        note["failed"] = counts.failures
        return note, (response.header, memory_of(response.segments))
    except Exception as error:
        note["error"] = int(code_of(error)), message_of(error), details_of(error)
        return note, (b"", [])


async def _phase(process: "_Process", header: bytes, parts: Sequence[_Part]) -> Parcel:
    received = await receive(incoming_of(Parcel(header)), PhaseRequest)
    return await answer(received, _Host(process, itertools.chain.from_iterable(parts)))


async def _merge(
    process: "_Process", header: bytes, clients: Sequence[int], contents: Sequence[Content], parts: Sequence[_Part]
) -> Parcel:
    host = _Host(process, itertools.chain.from_iterable(parts))
    received = await receive(incoming_of(Parcel(header)), PhaseRequest)
    admitted = await admit(received, host)
    enter_tolerance(received.message)
    with host.lend(0) as engine:
        assert isinstance(engine, PhaseEngine), "a local stack runs phases here"
        await received.fill(admitted.unpacker)
        await load(admitted, host)
        phase, arguments, first = admitted.phase.phase, admitted.phase.arguments, received.message.first_client
        children = [_Contributed(content) for content in contents]
        merged = await ComposedPhases(engine.server, children, clients).run_phase(
            phase, [], arguments, range(first, first + sum(clients))
        )
        differing = [module for child in children for module in child.differing]
        return await reply(admitted, (admitted.phase.clients, merged), engine, host, differing)


class _Contributed(PhaseRunner):
    """Returns the existing contribution of a range of clients to a phase, instead of running the phase.

    Attributes:
      differing: The modules that differ from the sender's at the worker that contributed; empty before the run.
    """

    def __init__(self, content: Content) -> None:
        self.differing: Sequence[str] = ()
        self._content = content

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        result, response = read_content(self._content, phase, arguments, clients, current_scope().of(Tolerance))
        self.differing = response.differing_module
        return result


def read_content(
    content: Content,
    phase: Phase,
    arguments: FoldArguments,
    clients: range,
    tolerance: Tolerance | None,
    place: str = "",
) -> tuple[PhaseResult, PhaseResponse]:
    """Reads the content of an answer.

    Returns:
      The contribution of a range of clients to a phase, and the response that contains the contribution.
    """
    header, memory = content
    response = PhaseResponse.FromString(header)
    unpacker = Unpacker(memory, clients=len(clients))
    received = read_result(phase, partial_states(phase, arguments), clients, response, unpacker, tolerance, place)
    unpacker.finish()
    return received.complete(), response


def _check_versions(settings: Settings, place: str) -> None:
    for what, sent, here in (
        ("Python", settings["python"], _python_version()),
        ("fedstack", settings["fedstack"], __version__),
    ):
        if sent != here:
            raise ProtocolVersionError(
                f"Expected {what} {sent}, the version of the process that calls the computation, found {here} at "
                f"{place}; install the same version in both environments"
            )


def _python_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


@functools.lru_cache(_MOST_STACKS)
def _process(max_concurrent_clients: int | None) -> "_Process":
    return _Process(max_concurrent_clients)


class _Process:
    """The state that this process keeps between phases: a local stack, and the functions that it has loaded."""

    def __init__(self, max_concurrent_clients: int | None) -> None:
        self.factory = local_executor_factory(max_concurrent_clients=max_concurrent_clients)
        inside = SyncExecutionContext(self.factory)  # for computations that leaf functions call
        self.admission = Admission(CarrierPolicy(python_code=True))
        self.scope = self.admission.scope.replace(environment=lambda: get_context_stack().install(inside))
        self.driver = SyncDriver()


class _MostRunning:
    """Counts clients for another counter, and records how many have run at the same time.

    Args:
      progress: The other counter; `None` for none.

    Attributes:
      most: The maximum number of clients that have run at the same time.
      failures: The number of clients that have failed.
    """

    def __init__(self, progress: ClientCounter | None) -> None:
        self._progress = ProgressCounts() if progress is None else progress
        self._running = self.most = self.failures = 0
        self._lock = threading.Lock()
        self.expect, self.withdrawn = self._progress.expect, self._progress.withdrawn
        self.elsewhere, self.watch = self._progress.elsewhere, self._progress.watch

    def started(self, clients: int) -> None:
        """Counts clients that have started."""
        with self._lock:
            self._running += clients
            self.most = max(self.most, self._running)
        self._progress.started(clients)

    def finished(self, clients: int) -> None:
        """Counts clients that are done."""
        with self._lock:
            self._running -= clients
        self._progress.finished(clients)

    def failed(self, clients: int, given_up: int = 0) -> None:
        """Counts clients that failed, and started clients that were abandoned."""
        with self._lock:
            self._running -= clients + given_up
            self.failures += clients
        self._progress.failed(clients, given_up)


class _Host(PhaseHost):
    """Runs one phase, whose arrays have already been received."""

    def __init__(self, process: _Process, came: Iterable[Memory]) -> None:
        super().__init__(process.admission)
        self._factory = process.factory
        self._came = came

    @contextmanager
    def lend(self, clients: int) -> Generator[PhaseRunner, None, None]:
        executor, give_back = borrow(self._factory, {CLIENTS: clients})
        try:
            with telling_path(executor):
                phases = phases_of(executor)
                assert phases is not None, "a local stack runs phases"
                yield phases
        finally:
            give_back()

    def unpacker(self, clients: int, rest: Incoming) -> Unpacker:
        return Unpacker(self._came, clients=clients)
