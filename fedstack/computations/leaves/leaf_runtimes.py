"""Selects and loads the runtimes of leaf computations, such as those for Python and JAX.

A leaf is a function without federated parts. In the IR it is a `data` block with a functional type, or an `xla` or
`tensorflow` block. The type of the message inside the block's `Any`, the *carrier*, determines which runtime loads the
leaf. A runtime is a `LeafRuntime`. Add a runtime with `register_leaf_runtime`, or from another distribution through the
entry point group `fedstack.leaf_runtimes` (name: the full name of the carrier message, value: the runtime object).
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

# Identifies this process in messages that are valid only within this process.
PROCESS = uuid.uuid4().hex
ENTRY_POINT_GROUP = "fedstack.leaf_runtimes"
_MAX_LEAVES = 1000
# A function that is sent by value includes its captures. Plans reference the function too, along with a message of the
# same size.
_MAX_LEAF_BYTES = 128 << 20


@attrs.frozen
class Destination:
    """Where a leaf computation is sent, and whether code is accepted there.

    Attributes:
      takes_code: Whether the destination accepts carriers that execute the sender's code.
      advice: The advice for a leaf that can only be sent as code, if the destination does not accept code.
      is_plain: Whether the destination is an executor service without fedstack's extensions, which may belong to
        another project.
    """

    takes_code: bool
    advice: str = ALLOW_CODE
    is_plain: bool = False


class LeafRuntime(abc.ABC):
    """The interface of runtimes, which check, load and send the leaf computations of one kind of carrier.

    The methods may be called on any thread.
    """

    @abc.abstractmethod
    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Loads a leaf computation and returns it as a `Leaf` that is ready to run.

        This method is never called on the thread of an event loop.

        Raises:
          CarrierError: If this process cannot load the leaf. The message explains the reason and the remedy.
        """

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        """Returns whether leaves of a carrier may be loaded if another process sends them.

        By default they may be loaded if the policy lists the carrier in `runtimes`, or allows Python code.

        Args:
          carrier: The full name of the carrier message.
          policy: The policy of this process for its clients.
        """
        return policy.allows_runtime(carrier)

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        """Checks a leaf from another process before it is loaded. By default only the carrier is checked.

        Args:
          computation: The leaf.
          policy: The policy of this process for its clients.

        Raises:
          CarrierError: If the policy does not allow the leaf. The message contains advice.
        """
        carrier = carrier_of(computation) or ""
        if not self.is_allowed(carrier, policy):
            raise CarrierError(
                f"Expected a leaf computation of an allowed kind, found {name_text(carrier)}; start the worker with "
                f"--allow-runtime {name_text(carrier)}"
            )

    def portable(self, content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
        """Returns the content to send to another process for a leaf. By default, this is the unchanged content.

        Args:
          content: The content of the leaf.
          destination: The destination of the leaf.

        Raises:
          CarrierError: If the leaf cannot be sent to this destination. The message contains advice.
        """
        return content

    def close(self) -> None:
        """Releases the resources of the runtime. Called when the runtime is replaced and when the process ends."""
        return


_runtimes: dict[str, LeafRuntime] = {}


def register_leaf_runtime(message_name: str, runtime: LeafRuntime) -> None:
    """Registers the runtime that loads all leaves whose content is a protobuf message with the given full name.

    Args:
      message_name: The full name of the carrier message.
      runtime: The runtime. It replaces the runtime that was previously registered for the message.

    Raises:
      InvalidValueError: If `runtime` is not a `LeafRuntime`.
    """
    if not isinstance(cast(object, runtime), LeafRuntime):
        raise InvalidValueError(
            f"Expected a fedstack.leaves.LeafRuntime, found {describe(runtime)}; derive the runtime's class from "
            "LeafRuntime"
        )
    before = _runtimes.get(message_name)
    _runtimes[message_name] = runtime
    if before is not None and before not in _runtimes.values():
        before.close()


@atexit.register
def _close_runtimes() -> None:
    for runtime in list(_runtimes.values()):
        with contextlib.suppress(Exception):  # the process is ending, so errors cannot be reported any more
            runtime.close()


def allowed_carriers(policy: CarrierPolicy) -> list[str]:
    """Returns the full names of the carrier messages that a policy allows, without importing any runtimes."""
    waiting = [carrier for carrier in _installed() if carrier not in _runtimes and policy.allows_runtime(carrier)]
    return sorted([carrier for carrier, runtime in _runtimes.items() if runtime.is_allowed(carrier, policy)] + waiting)


def needs_import(carrier: str | None) -> bool:
    """Returns whether the runtime of a carrier is in another distribution and has not been imported yet."""
    return carrier not in _runtimes and carrier in _installed()


@functools.cache
def _installed() -> dict[str, metadata.EntryPoint]:
    """Returns the entry points of runtimes in other distributions, by carrier. The search takes a while."""
    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def find_runtime(message_name: str) -> LeafRuntime | None:
    """Returns the runtime of a carrier, or `None` if no runtime is registered or installed for the carrier.

    Raises:
      CarrierError: If an installed runtime cannot be imported.
    """
    found = _runtimes.get(message_name)
    if found is None and (installed := _installed().get(message_name)) is not None:
        try:
            found = installed.load()
        except Exception as error:
            raise CarrierError(
                f"Importing the runtime {installed.value!r} for {message_name} raised {type(error).__name__}: {error}; "
                "repair or uninstall the distribution that contains the runtime"
            ) from error
        register_leaf_runtime(message_name, found)
    return found


def content_of(computation: computation_pb2.Computation) -> any_pb2.Any | None:
    """Returns the content of a leaf, as part of its message (not a copy); `None` if the computation is not a leaf."""
    kind = computation.WhichOneof("computation")
    if kind == "data":
        return computation.data.content
    if kind == "xla":
        return computation.xla.hlo_module
    return computation.tensorflow.graph_def if kind == "tensorflow" else None


def carrier_of(computation: computation_pb2.Computation) -> str | None:
    """Returns the full name of a leaf's carrier message, or `None` if the computation is not a leaf."""
    content = content_of(computation)
    return None if content is None else content.type_url.rpartition("/")[2]


def leaf_name(computation: computation_pb2.Computation) -> str:
    """Returns the name of a leaf's function without loading the leaf; empty if the carrier contains no name."""
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
      CarrierError: If there is no runtime for the carrier, or the runtime cannot load the leaf.
      InvalidComputationError: If the computation has no content.
    """
    name = carrier_of(computation)
    if not name:
        kind = computation.WhichOneof("computation") or "computation of unknown kind"
        raise InvalidComputationError(f"Expected a leaf computation with content, found an empty {kind}")
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
            f"{text_of(error)}; install in this process's environment the packages that the function needs, or send "
            "another function"
        ) from error
    if observers.present:
        seconds = time.perf_counter() - begin
        observers.tell(LeafLoaded(**current_scope().span.ids, name=leaf.name, carrier=name, seconds=seconds))
    return leaf


def unknown_carrier(name: str) -> CarrierError:
    """Returns the error for a leaf whose carrier has no runtime."""
    known = ", ".join(sorted(_runtimes))
    return CarrierError(
        f"Expected a leaf computation of a known kind ({known}), found {name_text(name)}; decorate the function with "
        f"fedstack.python_computation, or install the package that "
        f"provides the runtime through an entry point in the group {ENTRY_POINT_GROUP!r}"
    )


# The digest of a leaf, and the rules under which the leaf was loaded.
_Key: TypeAlias = tuple[bytes, Rules]


class LoadedLeaves:
    """A thread-safe cache of the most recently used leaves, by content.

    The cache key includes the rules of the policy. A leaf that was loaded under one policy is therefore checked and
    loaded again under another policy.

    Args:
      policy: The policy that decides which leaves may be loaded; by default the current policy at each load.

    Attributes:
      some_differ: Whether any leaf was loaded from a module of which the sender has a different version.
    """

    def __init__(self, policy: CarrierPolicy | None = None) -> None:
        self.some_differ = False
        self._policy = policy
        self._known: SharedCache[_Key, BoundOperation | Exception] = SharedCache(_MAX_LEAVES, _MAX_LEAF_BYTES)
        renew_after_fork(self)
        self.renew()

    def renew(self) -> None:
        """Replaces the locks. Called in a forked child."""
        self._lock = threading.Lock()
        # The locks of leaves that are being loaded, so that other threads that need the same leaf wait for it.
        self._turns: weakref.WeakValueDictionary[_Key, threading.RLock] = weakref.WeakValueDictionary()

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        """Returns a leaf from the cache, or loads the leaf if it is not in the cache.

        Raises:
          CarrierError: If the leaf cannot be loaded. An error that `prepare` stored for the leaf is raised again.
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
        """Returns a leaf from the cache, or `None` if the leaf has not been loaded."""
        key, _ = self._key(computation)
        found = self._known.get(key)
        return found if isinstance(found, BoundOperation) else None

    def prepare(self, computation: computation_pb2.Computation) -> None:
        """Loads a leaf in advance, which may run the sender's code. Errors are stored until `load` raises them."""
        try:
            found: BoundOperation | Exception = load_leaf(computation)
        except Exception as error:
            found = without_own_frames(error).with_traceback(None)
        except BaseException as error:  # raised by the sender's code, and must not end this process
            found = CarrierError(f"Loading a function raised {error!r}")
        key, size = self._key(computation)
        self._put(key, found, size)

    def _key(self, computation: computation_pb2.Computation) -> tuple[_Key, int]:
        digest, size = digest_of(computation)
        return (digest, (self._policy or current_policy()).rules), size

    def _put(self, key: _Key, found: BoundOperation | Exception, size: int) -> None:
        held = found.held_bytes if isinstance(found, BoundOperation) else 0
        self._known.put(key, found, size + held)
        if isinstance(found, BoundOperation) and found.differing_module:
            self.some_differ = True


def digest_of(computation: computation_pb2.Computation) -> tuple[bytes, int]:
    """Returns the digest and the size in bytes of a serialized computation."""
    content = computation.SerializeToString(deterministic=True)
    return hashlib.sha256(content).digest(), len(content)
