"""What runs at another engine's worker: a function from a phase to what its clients contributed.

Whoever can give an engine work can run any code there, so functions may come by value.
"""

import functools
import itertools
import os
import platform
import socket
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypedDict

import attrs
from numpy.typing import NDArray

from fedstack._version import __version__
from fedstack.backends.adoption import AdoptingUnpacker, arrays_of
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import ClientCounter
from fedstack.computations.types.language import CLIENTS, get_context_stack
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.contexts.invocation import telling_path
from fedstack.errors import ProtocolVersionError
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.verb_executor import phases_of
from fedstack.executors.concurrency.sync_driver import SyncDriver
from fedstack.executors.stacks.factories import local_executor_factory
from fedstack.executors.stacks.resource_factory import borrow
from fedstack.executors.worker.admission import Admission
from fedstack.executors.worker.phase_pipeline import PhaseHost, answer
from fedstack.executors.worker.received import receive
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.transport.wire.packing import Packer
from fedstack.transport.wire.parcels import Parcel, incoming_of
from fedstack.transport.wire.status import code_of, details_of, message_of

_MOST_STACKS = 4
_Arrays: TypeAlias = Sequence[NDArray[Any]]


class Settings(TypedDict):
    """What the process that sends a phase says of itself, and wants; plain data, which any version can read.

    Attributes:
      python: Its version of Python.
      fedstack: Its version of fedstack.
      max_concurrent_clients: The most functions to run at the same time; `None` for the default of local stacks.
    """

    python: str
    fedstack: str
    max_concurrent_clients: int | None


class Note(TypedDict):
    """What is said of an answer, plain data too.

    Attributes:
      place: The machine and the process.
      error: Where the phase failed, the code, message and details of a status.
    """

    place: str
    error: tuple[int, str, bytes] | None


# The response to a phase, and the arrays that belong to it; nothing where it failed.
Content: TypeAlias = tuple[bytes, _Arrays]
Answer: TypeAlias = tuple[Note, Content]


def settings_of_sender(max_concurrent_clients: int | None) -> Settings:
    """Returns the settings for phases that this process sends."""
    return Settings(python=_python_version(), fedstack=__version__, max_concurrent_clients=max_concurrent_clients)


def run_phase(settings: Settings, header: bytes, *parts: _Arrays) -> Answer:
    """Runs a phase on the calling thread; else as `answer_phase`."""
    guest = _guest(settings.get("max_concurrent_clients"))  # another version may have other settings
    with guest.scope.environment():
        return guest.driver.run(answer_phase(settings, header, *parts), inline=True)


async def answer_phase(
    settings: Settings, header: bytes, *parts: _Arrays, progress: ClientCounter | None = None
) -> Answer:
    """Runs a phase in this process; what it raises is in the answer.

    Args:
      settings: Of the process that sends it.
      header: The phase.
      *parts: What belongs to it, arrays in the order of the message.
      progress: Counts its clients.
    """
    note = Note(place=f"{socket.gethostname()}, process {os.getpid()}", error=None)
    try:
        _check_versions(settings, note["place"])
        guest = _guest(settings["max_concurrent_clients"])
        with attrs.evolve(guest.scope, progress=progress).entered():
            received = await receive(incoming_of(Parcel(header)), PhaseRequest)
            response = await answer(received, _Host(guest, itertools.chain.from_iterable(parts)))
        return note, (response.header, arrays_of(response.segments))
    except Exception as error:
        note["error"] = int(code_of(error)), message_of(error), details_of(error)
        return note, (b"", [])


def _check_versions(settings: Settings, place: str) -> None:
    for what, sent, here in (
        ("Python", settings["python"], _python_version()),
        ("fedstack", settings["fedstack"], __version__),
    ):
        if sent != here:
            raise ProtocolVersionError(
                f"Expected {what} {sent}, as where the computation is called, found {here}; at {place}; install the "
                "same version on both sides"
            )


def _python_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


@functools.lru_cache(_MOST_STACKS)
def _guest(max_concurrent_clients: int | None) -> "_Guest":
    return _Guest(max_concurrent_clients)


class _Guest:
    """What this process keeps from phase to phase: a local stack, and the functions that it has loaded."""

    def __init__(self, max_concurrent_clients: int | None) -> None:
        self.factory = local_executor_factory(max_concurrent_clients=max_concurrent_clients)
        inside = SyncExecutionContext(self.factory)  # for computations called in leaf functions
        self.admission = Admission(CarrierPolicy(python_code=True))
        self.scope = attrs.evolve(self.admission.scope, environment=lambda: get_context_stack().install(inside))
        self.driver = SyncDriver()


class _Host(PhaseHost):
    """Runs one phase, whose arrays are there already."""

    def __init__(self, guest: _Guest, arrays: Iterable[NDArray[Any]]) -> None:
        super().__init__(guest.admission)
        self._factory = guest.factory
        self._arrays = arrays

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

    def unpacker(self, clients: int) -> AdoptingUnpacker:
        return AdoptingUnpacker(self._arrays, clients)

    def packer(self) -> Packer:
        return Packer(elements=True, sequences=True)
