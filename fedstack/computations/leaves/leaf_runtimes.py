"""Finds the runtime that can run a leaf computation: the door through which Python, JAX and others come in.

A leaf is a function without federated parts. In the IR it is a `data` block with a functional type, or an `xla` or
`tensorflow` block; what is inside its `Any` says which runtime loads it. A runtime is a `LeafRuntime`; add
one with `register_leaf_runtime`, or from another distribution through the entry point group
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

# Names this process, for what must not leave it.
PROCESS = uuid.uuid4().hex
ENTRY_POINT_GROUP = "fedstack.leaf_runtimes"
_MAX_LEAVES = 1000
# Functions by value bring with them what they capture; plans have them too, and as many bytes again in messages.
_MAX_LEAF_BYTES = 128 << 20


@attrs.frozen
class Destination:
    """Where a leaf computation is to go.

    Attributes:
      takes_code: Whether it takes what executes the sender's code.
      advice: What to do about a leaf that could go as code only, where it does not.
    """

    takes_code: bool
    advice: str = ALLOW_CODE


class LeafRuntime(abc.ABC):
    """Answers what there is to ask of the leaf computations of one kind of carrier; any thread may ask."""

    @abc.abstractmethod
    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Returns the leaf, ready to run: a `Leaf`. It is never called on the thread of an event loop.

        Raises:
          CarrierError: If it cannot be loaded here; the message says why and what to do.
        """

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        """Returns whether leaves from other processes get in at all; by default if the policy names their carrier.

        Args:
          carrier: The full name of the message that is their content.
          policy: What this process allows those who send.
        """
        return policy.allows_runtime(carrier)

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        """Checks a leaf that another process has sent, before it is loaded; by default by its carrier alone.

        Args:
          computation: The leaf.
          policy: What this process allows those who send.

        Raises:
          CarrierError: If it does not get in; the message says what to do.
        """
        carrier = carrier_of(computation) or ""
        if not self.is_allowed(carrier, policy):
            raise CarrierError(
                f"Expected a leaf computation of an allowed kind, found {name_text(carrier)}; start the worker with "
                f"--allow-runtime {name_text(carrier)}"
            )

    def portable(self, content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
        """Returns what stands for a leaf in another process; by default what stands for it here.

        Args:
          content: The content of the leaf.
          destination: Where it is to go.

        Raises:
          CarrierError: If it cannot go there; the message says what to do.
        """
        return content

    def close(self) -> None:
        """Lets go of what it holds. Called when another runtime takes its place, and when the process ends."""
        return


_runtimes: dict[str, LeafRuntime] = {}


def register_leaf_runtime(message_name: str, runtime: LeafRuntime) -> None:
    """Makes `runtime` load every leaf whose content is the protobuf message `message_name` (its full name).

    Raises:
      InvalidValueError: If it is no `LeafRuntime`.
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
        with contextlib.suppress(Exception):  # nobody is left to be told
            runtime.close()


def allowed_carriers(policy: CarrierPolicy) -> list[str]:
    """Lists the full names of the messages whose leaves may come in. It imports no other distribution's runtime."""
    waiting = [carrier for carrier in _installed() if carrier not in _runtimes and policy.allows_runtime(carrier)]
    return sorted([carrier for carrier, runtime in _runtimes.items() if runtime.is_allowed(carrier, policy)] + waiting)


def needs_import(carrier: str | None) -> bool:
    """Returns whether the runtime of a carrier is another distribution's that has not been imported yet."""
    return carrier not in _runtimes and carrier in _installed()


@functools.cache
def _installed() -> dict[str, metadata.EntryPoint]:
    """Returns the runtimes of other distributions, by the messages that they load; looking for them takes a while."""
    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def find_runtime(message_name: str) -> LeafRuntime | None:
    """Returns what loads the leaves whose content is a message; `None` if nothing does."""
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
    """Returns a leaf's content, a part of the computation itself; `None` if the computation is no leaf."""
    kind = computation.WhichOneof("computation")
    if kind == "data":
        return computation.data.content
    if kind == "xla":
        return computation.xla.hlo_module
    return computation.tensorflow.graph_def if kind == "tensorflow" else None


def carrier_of(computation: computation_pb2.Computation) -> str | None:
    """Returns the full name of the message that a leaf's content is, or `None` if the computation is no leaf."""
    content = content_of(computation)
    return None if content is None else content.type_url.rpartition("/")[2]


def leaf_name(computation: computation_pb2.Computation) -> str:
    """Returns the name of the function that a leaf has, as far as its carrier has a field for it; it is not loaded."""
    content = content_of(computation)
    if content is None:
        return ""
    try:
        carrier = symbol_database.Default().GetSymbol(content.TypeName()).FromString(content.value)
    except (KeyError, DecodeError):  # of a runtime of somebody else's, or none at all
        return ""
    return name_text(getattr(carrier, "qualname", "") or getattr(carrier, "name", ""))


def load_leaf(computation: computation_pb2.Computation) -> BoundOperation:
    """Loads a leaf computation with the runtime for its carrier.

    Raises:
      CarrierError: If no runtime knows the carrier, or it cannot be loaded here.
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
    """Returns the error to raise for a leaf whose content is a message that no runtime loads."""
    known = ", ".join(sorted(_runtimes))
    return CarrierError(
        f"Expected a leaf computation of a known kind ({known}), found {name_text(name)}; write the function with "
        f"fedstack.python_computation, or install the package whose entry point {ENTRY_POINT_GROUP!r} runs it"
    )


# The digest of a leaf, and under which rules it was loaded.
_Key: TypeAlias = tuple[bytes, Rules]


class LoadedLeaves:
    """The leaves that were used last, by content; for any number of threads. Large ones are fewer.

    What one policy has let in is nothing to another: it is loaded again under that, or refused.

    Args:
      policy: Says what may be loaded; by default the policy in force, each time.

    Attributes:
      some_differ: Whether any that was loaded is from another version of its module than the sender's.
    """

    def __init__(self, policy: CarrierPolicy | None = None) -> None:
        self.some_differ = False
        self._policy = policy
        self._known: SharedCache[_Key, BoundOperation | Exception] = SharedCache(_MAX_LEAVES, _MAX_LEAF_BYTES)
        renew_after_fork(self)
        self.renew()

    def renew(self) -> None:
        """Begins to take turns anew."""
        self._lock = threading.Lock()
        # Those that are being loaded: whoever needs one of them too waits for it, and does not load it as well.
        self._turns: weakref.WeakValueDictionary[_Key, threading.RLock] = weakref.WeakValueDictionary()

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Returns a leaf, loaded unless it has been.

        Raises:
          CarrierError: If it cannot be loaded; what `prepare` has found out is not tried again.
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
        """Loads a leaf ahead; what goes wrong is raised when it is used. That may run what others wrote."""
        try:
            found: BoundOperation | Exception = load_leaf(computation)
        except Exception as error:
            found = without_own_frames(error).with_traceback(None)
        except BaseException as error:  # it is the sender's, and not meant for this process
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
    """Returns what stands for the content of a computation, and its size in bytes."""
    content = computation.SerializeToString(deterministic=True)
    return hashlib.sha256(content).digest(), len(content)
