"""Finds the runtime that can run a leaf computation: the door through which Python, JAX and others come in.

A leaf is a function without federated parts. In the IR it is a `data` block with a functional type, or an `xla` or
`tensorflow` block; what is inside its `Any` says which runtime loads it. A runtime is one object with one method; add
one with `register_leaf_runtime`, or from another distribution through the entry point group
`fedstack.leaf_runtimes` (name: the full name of the carrier message, value: the runtime object).
"""

import abc
import contextvars
import functools
import hashlib
import threading
import weakref
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from fedstack.computations.after_fork import renew_after_fork
from fedstack.computations.bounded_cache import SharedCache
from fedstack.computations.columns import Column, column_from_payloads
from fedstack.computations.language import Type, computation_pb2
from fedstack.computations.own_frames import without_own_frames
from fedstack.computations.texts import name_text
from fedstack.errors import CarrierError, InvalidComputationError

if TYPE_CHECKING:
    from fedstack.computations.program import Program

ENTRY_POINT_GROUP = "fedstack.leaf_runtimes"
_MAX_LEAVES = 1000
# Functions by value bring with them what they capture.
_MAX_LEAF_BYTES = 256 << 20


class Leaf(abc.ABC):
    """A leaf computation that is ready to run. It may be called from several threads at once."""

    name: str
    parameter: Type | None
    result: Type
    # Whether `call_column` does more than to call one by one: then it is used even where results are large.
    prefers_columns: bool = False

    @abc.abstractmethod
    def call(self, argument: object) -> object:
        """Runs the function once: payload in, payload out (`None` in where it takes no argument).

        Raises:
          LeafError: If the function raised.
          TypeMismatchError: If it returned something else than its result type.
        """

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        """Runs the function once for each of `size` clients, `first_client` and those after it.

        The default calls one by one; a runtime overrides it where it can do better.
        """
        arguments = [None] * size if argument is None else argument.items()
        return column_from_payloads([self.call(item) for item in arguments], self.result)

    def call_client(self, argument: object, client: int) -> object:
        """Runs the function for one client: `call`, with the client's index in messages."""
        return self.call(argument)

    def linked(self, link: "Callable[[Program], Program]") -> "Leaf":
        """Returns the operation with the programs inside of it linked; a leaf computation has none."""
        return self


class LeafRuntime(Protocol):
    """Loads the leaf computations of one kind of carrier."""

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        """Returns the leaf, ready to run.

        Raises:
          CarrierError: If it cannot be loaded here; the message says why and what to do.
        """
        ...


_runtimes: dict[str, LeafRuntime] = {}
# Whether leaf functions run for another process: what they raise to end the process they are in must not end this one.
runs_for_others: contextvars.ContextVar[bool] = contextvars.ContextVar("runs_for_others", default=False)


def register_leaf_runtime(message_name: str, runtime: LeafRuntime) -> None:
    """Makes `runtime` load every leaf whose content is the protobuf message `message_name` (its full name)."""
    _runtimes[message_name] = runtime


def known_carriers() -> list[str]:
    """Lists the full names of the messages whose leaves can be loaded here."""
    return sorted({*_runtimes, *_installed()})


@functools.cache
def _installed() -> dict[str, metadata.EntryPoint]:
    """Returns the runtimes of other distributions, by the messages that they load; looking for them takes a while."""
    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _find_runtime(message_name: str) -> LeafRuntime | None:
    found = _runtimes.get(message_name)
    if found is None and (installed := _installed().get(message_name)) is not None:
        found = _runtimes[message_name] = installed.load()
    return found


def carrier_of(computation: computation_pb2.Computation) -> str | None:
    """Returns the full name of the message that a leaf's content is, or `None` if the computation is no leaf."""
    kind = computation.WhichOneof("computation")
    if kind == "data":
        return computation.data.content.type_url.rpartition("/")[2]
    if kind == "xla":
        return computation.xla.hlo_module.type_url.rpartition("/")[2]
    if kind == "tensorflow":
        return computation.tensorflow.graph_def.type_url.rpartition("/")[2]
    return None


def load_leaf(computation: computation_pb2.Computation) -> Leaf:
    """Loads a leaf computation with the runtime for its carrier.

    Raises:
      CarrierError: If no runtime knows the carrier, or it cannot be loaded here.
      InvalidComputationError: If it has no content.
    """
    name = carrier_of(computation)
    if not name:
        kind = computation.WhichOneof("computation") or "computation of no kind"
        raise InvalidComputationError(f"Expected a leaf computation with its content, found a {kind} without any")
    runtime = _find_runtime(name)
    if runtime is None:
        known = ", ".join(sorted(_runtimes)) or "none"
        raise CarrierError(
            f"Expected a leaf computation of a known kind ({known}), found {name_text(name)}; in the leaf "
            f"executor; install the package whose entry point {ENTRY_POINT_GROUP!r} runs it"
        )
    return runtime.load(computation)


class LoadedLeaves:
    """The leaves that were used last, by content; for any number of threads. Large ones are fewer."""

    def __init__(self) -> None:
        self._known: SharedCache[bytes, Leaf | Exception] = SharedCache(_MAX_LEAVES, _MAX_LEAF_BYTES)
        renew_after_fork(self)
        self.renew()

    def renew(self) -> None:
        """Begins to take turns anew."""
        self._lock = threading.Lock()
        # Those that are being loaded: whoever needs one of them too waits for it, and does not load it as well.
        self._turns: weakref.WeakValueDictionary[bytes, threading.RLock] = weakref.WeakValueDictionary()

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        """Returns a leaf, loaded unless it has been.

        Raises:
          CarrierError: If it cannot be loaded; what `prepare` has found out is not tried again.
        """
        key, size = digest_of(computation)
        known = self._known.get(key)
        if known is None:
            with self._lock:
                turn = self._turns.setdefault(key, threading.RLock())
            with turn:
                known = self._known.get(key)
                if known is None:
                    known = load_leaf(computation)
                    self._known.put(key, known, size)
        if isinstance(known, Exception):
            raise known.with_traceback(None)
        return known

    def has(self, computation: computation_pb2.Computation) -> bool:
        """Tells whether a leaf has been loaded."""
        key, _ = digest_of(computation)
        return isinstance(self._known.get(key), Leaf)

    def prepare(self, computation: computation_pb2.Computation) -> None:
        """Loads a leaf ahead; what goes wrong is raised when it is used. That may run what others wrote."""
        try:
            found: Leaf | Exception = load_leaf(computation)
        except Exception as error:
            found = without_own_frames(error).with_traceback(None)
        except BaseException as error:  # it is the sender's, and not meant for this process
            found = CarrierError(f"Expected a function that can be loaded, found that it raised {error!r}")
        key, size = digest_of(computation)
        self._known.put(key, found, size)


# What a service has loaded ahead for the current work; `None` elsewhere.
prepared_leaves: contextvars.ContextVar[LoadedLeaves | None] = contextvars.ContextVar("prepared_leaves", default=None)


def digest_of(computation: computation_pb2.Computation) -> tuple[bytes, int]:
    """Returns what stands for the content of a computation, and its size in bytes."""
    content = computation.SerializeToString(deterministic=True)
    return hashlib.sha256(content).digest(), len(content)
