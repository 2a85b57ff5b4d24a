"""The client that calls the registered methods of an RPC server."""

import difflib
import inspect
import math
import numbers
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from fedstack.computations.values.tensor_values import describe
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.foundations.number_checks import check_bool
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.rpc.method_calls import Arguments, MethodCalls, Prepared, check_method_name, prepare
from fedstack.service.rpc.method_table import BLOCKING, check_layer
from fedstack.service.rpc.signatures import Signature
from fedstack.service.rpc.status_or_result import StatusOrResult
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.io_loop import Outcome, start_apart
from fedstack.transport.peers.method_stub import MethodStub


class Client(ClosesOnExit):
    """Calls the methods of a server. Create a client with `Client.create`; close it with `close` or a `with` block.

    Each method of the server whose name is an identifier becomes two methods of the client: `client.add(1, 2)`
    immediately returns a `StatusOrResult`, and `client.add_blocking(1, 2)` waits for the result and returns it. Any
    thread and any event loop may use a client.
    """

    def __init__(self, calls: MethodCalls, name: str, seconds: float) -> None:
        self._calls = calls
        self._name = name
        self._seconds = seconds
        self._shown: dict[str, tuple[Signature, Callable[..., Any]]] = {}
        weakref.finalize(self, _end, calls).atexit = False

    @classmethod
    def create(
        cls,
        rpc_layer: str,
        address: WorkerTargets,
        name: str = "",
        list_registered_methods: bool = True,
        timeout_in_ms: float = 0,
        credentials: ClientCredentials | None = None,
        wait_for_ready: bool = True,
        transport: Transport = "auto",
    ) -> "Client":
        """Creates a client: waits for the server and requests the list of its methods.

        Args:
          rpc_layer: The kind of server; must be `"grpc"`.
          address: An address such as `host:port`, a server's `target`, a cluster's job with one task, or a channel.
          name: The name of the client, shown in its `repr`.
          list_registered_methods: Whether to request the list of methods now. If not, this method returns immediately,
            and the first call or `async with` requests the list.
          timeout_in_ms: The time limit of this method, and of each call without its own timeout; 0 for no limit.
          credentials: The certificates and the token to authenticate with.
          wait_for_ready: Whether this method and all calls wait for a server that is unreachable. Otherwise, they fail
            immediately with `UNAVAILABLE`.
          transport: How to reach an address: `"stream"`, `"grpc"`, or `"auto"` for a stream if there is one.

        Raises:
          DeadlineExceededError: If the server does not answer in time.
          WorkerUnavailableError: If the server is still unreachable when the time limit has passed, or, without
            `wait_for_ready`, if it is unreachable now.
          AuthenticationError: If the server rejects this client.
          InvalidValueError: If the layer is not supported, or the address is invalid or names several servers.
        """
        check_layer(rpc_layer)
        seconds = _seconds_of(timeout_in_ms)
        check_bool("wait_for_ready", wait_for_ready)
        stubs = make_stubs(address, credentials, transport)
        if len(stubs) != 1:
            raise InvalidValueError(
                f"Expected the address of one server, found {len(stubs)} addresses "
                f"({', '.join(stub.address for stub in stubs)}); create a client for each server"
            )
        client = cls(MethodCalls(MethodStub(stubs[0].connection), wait_for_ready), str(name), seconds)
        if list_registered_methods:
            try:
                client.refresh()
            except BaseException:
                client.close()
                raise
        return client

    @property
    def target(self) -> str:
        """The server's address."""
        return self._calls.address

    @property
    def methods(self) -> Mapping[str, str]:
        """The known methods of the server: a mapping from names to signatures as text."""
        return {name: str(signature) for name, signature in self._calls.signatures.items()}

    def refresh(self, timeout_in_ms: float = 0) -> None:
        """Requests the list of methods again, to find methods that were registered since the last request.

        Args:
          timeout_in_ms: The time limit; 0 for the client's own timeout, negative for no limit.

        Raises:
          DeadlineExceededError: If the server does not answer in time.
        """
        self._calls.io.run_sync(self._calls.learn(_seconds_of(timeout_in_ms, self._seconds)))

    def call(
        self, method_name: str, args: object = None, output_specs: object = None, timeout_in_ms: float = 0
    ) -> "StatusOrResult[Any]":
        """Starts a call of a method, and immediately returns a handle to its result or error.

        Args:
          method_name: The name of the method.
          args: The arguments: a list or tuple by position, a mapping by name, or any other value as the only argument.
          output_specs: The expected type of the result, checked against the type that the server reports. Optional.
          timeout_in_ms: The time limit of the call on the client and on the server; 0 for the client's own timeout,
            negative for no limit.

        Raises:
          InvalidValueError: If the name is not a string, or the timeout is not a number.
        """
        seconds = _seconds_of(timeout_in_ms, self._seconds)
        by_name: Mapping[str, object] = {}
        by_position: tuple[object, ...] = ()
        if isinstance(args, Mapping):
            by_name = cast("Mapping[str, object]", args)
        elif args is not None:
            by_position = tuple(cast("list[object]", args)) if isinstance(args, (list, tuple)) else (args,)
        arguments = Arguments(check_method_name(method_name), by_position, by_name, output_specs)
        try:
            return self._start(arguments, seconds)
        except FedstackError as error:
            failed: Outcome[Any] = Outcome()
            failed.set(None, error)
            return StatusOrResult(failed, method_name, self.target)

    def _start(self, arguments: Arguments, seconds: float) -> "StatusOrResult[Any]":
        """Starts a call.

        Raises:
          TypeMismatchError: If the arguments do not match the method's parameters.
        """
        outcome = self._calls.io.submit(self._calls.call(arguments, self._prepared(arguments), seconds))
        return StatusOrResult(outcome, arguments.name, self._calls.address)

    def _prepared(self, arguments: Arguments) -> Prepared | None:
        if self._closed:
            raise self._closed_error()
        signature = self._calls.signatures.get(arguments.name)
        return None if signature is None else prepare(signature, arguments)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = self._calls.signatures
        signature = known.get(name.removesuffix(BLOCKING))
        if signature is None:
            ending = BLOCKING if name.endswith(BLOCKING) else ""
            near = [one + ending for one in difflib.get_close_matches(name.removesuffix(BLOCKING), known, 3)]
            advice = f"did you mean {' or '.join(near)}?" if near else "call refresh() to find new methods"
            raise AttributeError(f"{self!r} has no method {name!r}; {advice}")
        found = self._shown.get(name)
        if found is None or found[0] is not signature:
            found = self._shown[name] = signature, self._function(signature, name)
        return found[1]

    def _function(self, signature: Signature, name: str) -> Callable[..., Any]:
        """Returns the function that a client exposes for a method of the server."""
        is_blocking = name.endswith(BLOCKING)

        def call(*args: object, timeout_in_ms: float = 0, **kwargs: object) -> object:
            try:
                seconds = _seconds_of(timeout_in_ms, self._seconds)
                arguments = Arguments(signature.name, args, kwargs)
                if is_blocking and not self._calls.io.is_current():
                    return self._calls.call_blocking(arguments, self._prepared(arguments), seconds)
                outcome = self._start(arguments, seconds)
            except FedstackError as error:
                raise without_own_frames(error).with_traceback(None) from error.__cause__
            return outcome.get_value() if is_blocking else outcome

        python = signature.of_python
        timeout = inspect.Parameter("timeout_in_ms", inspect.Parameter.KEYWORD_ONLY, default=0)
        returned = python.return_annotation
        call.__name__ = call.__qualname__ = name
        vars(call)["__signature__"] = python.replace(
            parameters=[*python.parameters.values(), timeout],
            return_annotation=returned if is_blocking else StatusOrResult,
        )
        says = "Starts a call to" if not is_blocking else "Calls and waits for"
        call.__doc__ = f"{says} the method {signature} of the server at {self.target}." + (
            f"\n\n{signature.doc}" if signature.doc else ""
        )
        return call

    def __dir__(self) -> list[str]:
        names = [name for name in self._calls.signatures if name.isidentifier()]
        return [*super().__dir__(), *names, *(name + BLOCKING for name in names)]

    async def _connected(self) -> None:
        if not self._calls.signatures:
            await self._calls.io.run(self._calls.learn(self._seconds))

    def close(self) -> None:
        """Cancels running calls and closes the connection. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self._calls.io.finish(self._calls.close())

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        return f"<rpc.Client{name} of {self.target}{', closed' if self._closed else ''}>"


def _seconds_of(timeout_in_ms: float, default: float = 0.0) -> float:
    """Converts a timeout to seconds. 0 means the default timeout; a negative number means no limit.

    Returns:
      The timeout in seconds; 0 for no limit.

    Raises:
      InvalidValueError: If the timeout is not a number.
    """
    found: object = timeout_in_ms
    if isinstance(found, bool) or not isinstance(found, numbers.Real) or math.isnan(found):
        raise InvalidValueError(f"Expected a number as timeout_in_ms, found {describe(found)}")
    return max(0.0, float(timeout_in_ms) / 1000) if timeout_in_ms else default


def _end(calls: MethodCalls) -> None:
    """Closes the connection of a garbage-collected client; called as a finalizer."""

    def end() -> None:
        start_apart(calls.end())

    calls.io.call_soon(end)
