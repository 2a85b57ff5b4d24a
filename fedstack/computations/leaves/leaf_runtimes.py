"""Finds the runtime that can run a leaf computation: Python, JAX and others.

A leaf is a function without federated parts. In the IR it is a `data` block with a functional type, or an `xla` or
`tensorflow` block. The message inside its `Any`, the *carrier*, decides which runtime loads it. A runtime is a
`LeafRuntime`; add one with `register_leaf_runtime`, or from another distribution through the entry point group
`fedstack.leaf_runtimes` (name: the full name of the carrier message, value: the runtime object).
"""

import abc
import atexit
import contextlib
import functools
import hashlib
import threading
import time
import uuid
import weakref
from importlib import metadata
from typing import TypeAlias, cast

import attrs
from google.protobuf import any_pb2, symbol_database
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.carrier_policy import ALLOW_CODE, CarrierPolicy, Rules
from fedstack.computations.leaves.work_scope import current_policy, current_scope
from fedstack.computations.types.language import computation_pb2
from fedstack.errors import CarrierError, FedstackError, InvalidComputationError, InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.error_text import name_text, text_of
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.foundations.value_text import describe
from fedstack.observe.events import LeafLoaded
from fedstack.observe.observers import observers

# Identifies this process in messages that must not leave it.
PROCESS = uuid.uuid4().hex
ENTRY_POINT_GROUP = "fedstack.leaf_runtimes"
_MAX_LEAVES = 1000
# Functions by value contain what they capture; plans reference them too, and messages of the same size.
_MAX_LEAF_BYTES = 128 << 20


@attrs.frozen
class Destination:
    """The destination of a leaf computation.

    Attributes:
      takes_code: Whether it accepts carriers that execute the sender's code.
      advice: The advice for a leaf that could be sent as code only, if it does not.
    """

    takes_code: bool
    advice: str = ALLOW_CODE


class LeafRuntime(abc.ABC):
    """Loads, admits and sends the leaf computations of one kind of carrier; used on any thread."""

    @abc.abstractmethod
    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Returns the leaf, ready to run: a `Leaf`. It is not called on the thread of an event loop.

        Raises:
          CarrierError: If it cannot be loaded here; the message says why and what to do.
        """

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        """Returns whether leaves from other processes may be loaded at all; by default if the policy names the carrier.

        Args:
          carrier: The full name of the carrier message.
          policy: The policy of this process for its clients.
        """
        return policy.allows_runtime(carrier)

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        """Checks a leaf of another process before it is loaded; by default only its carrier.

        Args:
          computation: The leaf.
          policy: The policy of this process for its clients.

        Raises:
          CarrierError: If it may not be loaded; the message says what to do.
        """
        carrier = carrier_of(computation) or ""
        if not self.is_allowed(carrier, policy):
            raise CarrierError(
                f"Expected a leaf computation of an allowed kind, found {name_text(carrier)}; start the worker with "
                f"--allow-runtime {name_text(carrier)}"
            )

    def portable(self, content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
        """Returns the content of a leaf for another process; by default its content here.

        Args:
          content: The content of the leaf.
          destination: The destination of the leaf.

        Raises:
          CarrierError: If it cannot be sent there; the message says what to do.
        """
        return content

    def close(self) -> None:
        """Releases its resources. Called when another runtime replaces it, and when the process ends."""
        return


_runtimes: dict[str, LeafRuntime] = {}


def register_leaf_runtime(message_name: str, runtime: LeafRuntime) -> None:
    """Makes `runtime` load every leaf whose content is the protobuf message `message_name` (its full name).

    Raises:
      InvalidValueError: If it is not a `LeafRuntime`.
    """
    if not isinstance(cast(object, runtime), LeafRuntime):
        raise InvalidValueError(
            f"Expected a fedstack.leaves.LeafRuntime, found {describe(runtime)}; derive the runtime's class from that"
        )
    before = _runtimes.get(message_name)
    _runtimes[message_name] = runtime
    if before is not None and before not in _runtimes.values():
        before.close()


@atexit.register
def _close_runtimes() -> None:
    for runtime in list(_runtimes.values()):
        with contextlib.suppress(Exception):  # it is too late to report errors
            runtime.close()


def allowed_carriers(policy: CarrierPolicy) -> list[str]:
    """Lists the carriers that may be loaded, by the full names of their messages. It imports no runtimes."""
    waiting = [carrier for carrier in _installed() if carrier not in _runtimes and policy.allows_runtime(carrier)]
    return sorted([carrier for carrier, runtime in _runtimes.items() if runtime.is_allowed(carrier, policy)] + waiting)


def needs_import(carrier: str | None) -> bool:
    """Returns whether the runtime of a carrier has yet to be imported from another distribution."""
    return carrier not in _runtimes and carrier in _installed()


@functools.cache
def _installed() -> dict[str, metadata.EntryPoint]:
    """Returns the runtimes of other distributions, by their carriers; searching for them takes a while."""
    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def find_runtime(message_name: str) -> LeafRuntime | None:
    """Returns the runtime of a carrier; `None` if there is none."""
    found = _runtimes.get(message_name)
    if found is None and (installed := _installed().get(message_name)) is not None:
        try:
            found = installed.load()
        except Exception as error:
            raise CarrierError(
                f"Importing the runtime {installed.value!r} for {message_name} raised {type(error).__name__}: {error}; "
                "repair or remove the distribution that has it"
            ) from error
        register_leaf_runtime(message_name, found)
    return found


def content_of(computation: computation_pb2.Computation) -> any_pb2.Any | None:
    """Returns the content of a leaf, a part of the computation's message; `None` if the computation is not a leaf."""
    kind = computation.WhichOneof("computation")
    if kind == "data":
        return computation.data.content
    if kind == "xla":
        return computation.xla.hlo_module
    return computation.tensorflow.graph_def if kind == "tensorflow" else None


def carrier_of(computation: computation_pb2.Computation) -> str | None:
    """Returns the full name of a leaf's carrier message; `None` if the computation is not a leaf."""
    content = content_of(computation)
    return None if content is None else content.type_url.rpartition("/")[2]


def leaf_name(computation: computation_pb2.Computation) -> str:
    """Returns the name of a leaf's function, if its carrier has a field for it, without loading the leaf."""
    content = content_of(computation)
    if content is None:
        return ""
    try:
        carrier = symbol_database.Default().GetSymbol(content.TypeName()).FromString(content.value)
    except (KeyError, DecodeError):  # an unknown or malformed carrier
        return ""
    return name_text(getattr(carrier, "qualname", "") or getattr(carrier, "name", ""))


def load_leaf(computation: computation_pb2.Computation) -> BoundOperation:
    """Loads a leaf computation with the runtime for its carrier.

    Raises:
      CarrierError: If there is no runtime for the carrier, or it cannot be loaded here.
      InvalidComputationError: If it has no content.
    """
    name = carrier_of(computation)
    if not name:
        kind = computation.WhichOneof("computation") or "computation of no kind"
        raise InvalidComputationError(f"Expected a leaf computation with its content, found a {kind} without any")
    runtime = find_runtime(name)
    if runtime is None:
        raise unknown_carrier(name)
    begin = time.perf_counter()
    try:
        leaf = runtime.load(computation)
    except (FedstackError, MemoryError):
        raise
    except Exception as error:
        raise CarrierError(
            f"Loading a {name_text(name)} with {type(runtime).__name__} raised {type(error).__name__}: "
            f"{text_of(error)}; install here what the function needs, or send another one"
        ) from error
    if observers.present:
        seconds = time.perf_counter() - begin
        observers.tell(LeafLoaded(**current_scope().span.ids, name=leaf.name, carrier=name, seconds=seconds))
    return leaf


def unknown_carrier(name: str) -> CarrierError:
    """Returns the error for a leaf with a carrier that no runtime loads."""
    known = ", ".join(sorted(_runtimes))
    return CarrierError(
        f"Expected a leaf computation of a known kind ({known}), found {name_text(name)}; write the function with "
        f"fedstack.python_computation, or install the package whose entry point {ENTRY_POINT_GROUP!r} runs it"
    )


# The digest of a leaf, and the rules under which it was loaded.
_Key: TypeAlias = tuple[bytes, Rules]


class LoadedLeaves:
    """A cache of the leaves used most recently, by content; for any number of threads.

    A leaf that one policy has allowed is loaded again under another, or refused.

    Args:
      policy: Decides what may be loaded; by default the policy in force at each load.

    Attributes:
      some_differ: Whether any leaf was loaded from another version of its module than the sender's.
    """

    def __init__(self, policy: CarrierPolicy | None = None) -> None:
        self.some_differ = False
        self._policy = policy
        self._known: SharedCache[_Key, BoundOperation | Exception] = SharedCache(_MAX_LEAVES, _MAX_LEAF_BYTES)
        renew_after_fork(self)
        self.renew()

    def renew(self) -> None:
        """Replaces the locks, in a forked child."""
        self._lock = threading.Lock()
        # Locks of leaves that are being loaded, so that a thread that needs the same leaf waits for it.
        self._turns: weakref.WeakValueDictionary[_Key, threading.RLock] = weakref.WeakValueDictionary()

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Returns a leaf, which is loaded if it has not been.

        Raises:
          CarrierError: If it cannot be loaded; a failure of `prepare` is raised again.
        """
        key, size = self._key(computation)
        known = self._known.get(key)
        if known is None:
            with self._lock:
                turn = self._turns.setdefault(key, threading.RLock())
            with turn:
                known = self._known.get(key)
                if known is None:
                    known = load_leaf(computation)
                    self._put(key, known, size)
        if isinstance(known, Exception):
            raise known.with_traceback(None)
        return known

    def find(self, computation: computation_pb2.Computation) -> BoundOperation | None:
        """Returns a leaf if it has been loaded."""
        key, _ = self._key(computation)
        found = self._known.get(key)
        return found if isinstance(found, BoundOperation) else None

    def prepare(self, computation: computation_pb2.Computation) -> None:
        """Loads a leaf ahead; an error is raised when it is used. Loading may run the sender's code."""
        try:
            found: BoundOperation | Exception = load_leaf(computation)
        except Exception as error:
            found = without_own_frames(error).with_traceback(None)
        except BaseException as error:  # raised by the sender's code, and not meant for this process
            found = CarrierError(f"Loading a function raised {error!r}")
        key, size = self._key(computation)
        self._put(key, found, size)

    def _key(self, computation: computation_pb2.Computation) -> tuple[_Key, int]:
        digest, size = digest_of(computation)
        return (digest, (self._policy or current_policy()).rules), size

    def _put(self, key: _Key, found: BoundOperation | Exception, size: int) -> None:
        self._known.put(key, found, size)
        if isinstance(found, BoundOperation) and found.differing_module:
            self.some_differ = True


def digest_of(computation: computation_pb2.Computation) -> tuple[bytes, int]:
    """Returns the digest of a computation's content, and the size of that in bytes."""
    content = computation.SerializeToString(deterministic=True)
    return hashlib.sha256(content).digest(), len(content)
