"""Defines the table of a server's registered methods, and the statistics of their calls."""

import difflib
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator

import attrs

from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import ConcreteComputation, computation_pb2
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import contains_federated, contains_function
from fedstack.errors import InvalidComputationError, InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.error_text import name_text
from fedstack.foundations.value_text import describe
from fedstack.proto.methods_pb2 import MethodCalls
from fedstack.service.rpc.signatures import NOTHING, Signature, signature_of
from fedstack.transport.wire.status import Code, StatusError

# The attributes of `Client`, which cannot be the names of methods.
RESERVED = frozenset({"call", "close", "create", "is_entered", "methods", "refresh", "target"})
BLOCKING = "_blocking"
TIMEOUT = "timeout_in_ms"
_MOST_CHARACTERS = 200
_NEAR_NAMES = 3
_LAST_TIMES = 1000


class CallTimes:
    """The number of calls of a method and the durations of the most recent calls."""

    def __init__(self) -> None:
        self.ended = 0
        self.failed = 0
        self.running = 0
        self._last: deque[float] = deque(maxlen=_LAST_TIMES)

    def began(self) -> float:
        """Counts the start of a call, and returns the start time to pass to `done`."""
        self.running += 1
        return time.perf_counter()

    def done(self, begun: float, failed: bool) -> None:
        """Counts the end of a call that started at the time `begun`."""
        self.running -= 1
        self.failed += failed
        self.ended += 1
        self._last.append(time.perf_counter() - begun)

    def message(self) -> MethodCalls:
        """Returns the counts and durations as a message."""
        times = sorted(self._last)
        median, p99 = (times[int(share * (len(times) - 1))] if times else 0.0 for share in (0.5, 0.99))
        numbers = {"ended": self.ended, "failed": self.failed, "running": self.running}
        return MethodCalls(**numbers, median_seconds=median, p99_seconds=p99)


def _is_leaf(method: "Method") -> bool:
    return method.computation.WhichOneof("computation") in ("data", "xla", "tensorflow")


@attrs.frozen(eq=False)
class Method:
    """A computation registered under a name.

    Attributes:
      signature: The name, parameters and result of the method.
      source: The registered computation. The reference keeps its Python function alive.
      computation: The registered computation as a message.
      inline: Whether the method runs on the server's event loop.
      has_clients: Whether the argument may determine the number of clients.
      calls: The statistics of the method's calls.
      is_leaf: Whether the method is a single function, which cannot be stopped while it runs.
    """

    signature: Signature
    source: ConcreteComputation
    computation: computation_pb2.Computation
    inline: bool
    has_clients: bool
    calls: CallTimes = attrs.field(factory=CallTimes)
    is_leaf: bool = attrs.field(init=False, default=attrs.Factory(_is_leaf, takes_self=True))


class MethodTable:
    """The methods of a server. Any thread may register methods; methods are never removed."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replaces the lock in a forked child; see `after_fork`."""
        self._lock = threading.Lock()

    def register(
        self, name: str, computation: object, inline: bool, parameter_types: ParameterTypes, result_type: object
    ) -> None:
        """Adds a method; see `rpc.Server.register`."""
        check_name(name)
        found = _computation_of(name, computation, parameter_types, result_type)
        signature = signature_of(name, found)
        parameter, result = signature.function.parameter, signature.function.result
        if any(contains_function(t) for t in (parameter, result) if t is not None):
            raise InvalidComputationError(
                "Expected a method that accepts and returns only values, found one of type "
                f"{type_text(signature.function)} for {name!r}; call the functions inside the method"
            )
        if TIMEOUT in signature.parameters:
            raise InvalidComputationError(
                f"Expected parameters of {name!r} that clients can pass by name, found one named {TIMEOUT!r}, which is "
                "reserved for the time limit of a call; rename the parameter"
            )
        has_clients = parameter is not None and contains_federated(parameter)
        if inline and (has_clients or contains_federated(result)):
            raise InvalidComputationError(
                f"Expected a method without clients for inline=True, found one of type {type_text(signature.function)} "
                f"for {name!r}; omit inline=True"
            )
        method = Method(signature, found, found.to_proto(), inline, has_clients)
        with self._lock:
            if name in self._methods:
                raise InvalidValueError(
                    f"Expected a new name, found {name!r}, which is already registered as "
                    f"{self._methods[name].signature}; choose another name"
                )
            self._methods = {**self._methods, name: method}

    def find(self, name: str) -> Method:
        """Returns the method with the given name.

        Raises:
          StatusError: With code NOT_FOUND, if no method has the name.
        """
        found = self._methods.get(name)
        if found is None:
            raise StatusError(Code.NOT_FOUND, unknown_method(name, self._methods))
        return found

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def __len__(self) -> int:
        return len(self._methods)

    def __repr__(self) -> str:
        return f"<MethodTable {', '.join(self._methods) or 'empty'}>"


def check_layer(rpc_layer: object) -> None:
    """Checks the name of the transport for calls.

    Raises:
      InvalidValueError: If the transport is not supported.
    """
    if rpc_layer != "grpc":
        raise InvalidValueError(f'Expected "grpc" as rpc_layer, found {describe(rpc_layer)}; pass "grpc"')


def unknown_method(name: str, names: Collection[str]) -> str:
    """Returns the error message for a name that no method has.

    Args:
      name: The unknown name.
      names: The names of the known methods.
    """
    near = difflib.get_close_matches(name[:_MOST_CHARACTERS], names, _NEAR_NAMES)
    advice = f"did you mean {' or '.join(repr(one) for one in near)}?"
    if not near:
        shown = ", ".join(sorted(names)[:10]) + ", …" * (len(names) > 10)
        advice = f"the server's methods are {shown}" if names else "the server has no methods"
    return f"Expected the name of a method, found {name_text(name)!r}; {advice}"


def check_name(name: object) -> None:
    """Checks the name of a new method.

    Raises:
      InvalidValueError: If the name is not a printable string of valid length, or is reserved.
    """
    if not isinstance(name, str) or not name or len(name) > _MOST_CHARACTERS:
        raise InvalidValueError(
            f"Expected a name of 1 to {_MOST_CHARACTERS} characters for the method, found {describe(name)}; "
            "choose another name"
        )
    if name in RESERVED or name.endswith(BLOCKING) or name.startswith("_"):
        raise InvalidValueError(
            f"Expected a name that clients can expose as a method, found the reserved name {name!r}; choose a name "
            f"other than {', '.join(sorted(RESERVED))} that neither starts with '_' nor ends with '{BLOCKING}'"
        )
    if not name.isprintable():  # also rejects text that UTF-8 cannot encode
        raise InvalidValueError(f"Expected a name of printable characters, found {name!r}; choose another name")


def _computation_of(
    name: str, given: object, parameter_types: ParameterTypes, result_type: object
) -> ConcreteComputation:
    if isinstance(given, ConcreteComputation):
        if parameter_types is not None or result_type is not None:
            raise InvalidValueError(
                f"Expected neither parameter_types nor result_type for {name!r}, which is a computation with its own "
                "types, found at least one of them; omit both"
            )
        return given
    if not callable(given):
        raise InvalidComputationError(
            f"Expected a computation or a Python function for {name!r}, found {describe(given)}; decorate a function "
            "with @fedstack.python_computation, or pass a function together with parameter_types=[...]"
        )
    if result_type is None and getattr(given, "__annotations__", {}).get("return", ...) in (None, "None"):
        result_type = NOTHING
    return python_computation(parameter_types, result_type)(given)
