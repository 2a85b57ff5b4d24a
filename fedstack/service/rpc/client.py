"""Defines the client of registered methods."""

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
from fedstack.transport.peers.io_loop import Outcome, start_apart
from fedstack.transport.peers.method_stub import MethodStub


class Client(ClosesOnExit):
    """Calls the methods of a server. Create it with `Client.create`; end it with `close`, or use it in a `with` block.

    Each method of the server whose name is an identifier is a method of the client: `client.add(1, 2)` returns a
    `StatusOrResult` at once, `client.add_blocking(1, 2)` the result. Any thread and any event loop may use a client.
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
    ) -> "Client":
        """Returns a client; waits for the server, and asks for its methods.

        Args:
          rpc_layer: The transport of calls: `"grpc"`.
          address: `host:port` or another address, a server's `target`, a cluster's job with one task, or a channel.
          name: The client's name in messages.
          list_registered_methods: Whether to ask for the methods now. If not, this returns at once, and the first call
            or `async with` asks for them.
          timeout_in_ms: How long to wait, for this and for each call without a timeout of its own; 0 for no limit.
          credentials: Certificates and the token.
          wait_for_ready: Whether this and calls wait for a server that is unreachable; if not, they fail at once with
            `UNAVAILABLE`.

        Raises:
          DeadlineExceededError: If the server does not answer in time.
          WorkerUnavailableError: If it is still unreachable when the time is over, or at once without `wait_for_ready`.
          AuthenticationError: If it rejects this client.
          InvalidValueError: If the layer is not supported, or the address is invalid or names several servers.
        """
        check_layer(rpc_layer)
        seconds = _seconds_of(timeout_in_ms)
        check_bool("wait_for_ready", wait_for_ready)
        stubs = make_stubs(address, credentials)
        if len(stubs) != 1:
            raise InvalidValueError(
                f"Expected the address of one server, found {len(stubs)}: {', '.join(stub.address for stub in stubs)}; "
                "create a client for each"
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
        """The known methods: their signatures as text, by name."""
        return {name: str(signature) for name, signature in self._calls.signatures.items()}

    def refresh(self, timeout_in_ms: float = 0) -> None:
        """Asks the server for its methods again: some may be new.

        Raises:
          DeadlineExceededError: If it does not answer in time.
        """
        self._calls.io.run_sync(self._calls.learn(_seconds_of(timeout_in_ms, self._seconds)))

    def call(
        self, method_name: str, args: object = None, output_specs: object = None, timeout_in_ms: float = 0
    ) -> "StatusOrResult[Any]":
        """Calls a method and returns its outcome at once; errors of the call are part of the outcome.

        Args:
          method_name: The name of the method.
          args: The arguments: a list or tuple, a mapping by name, or the only argument if it is neither.
          output_specs: The type that the caller expects of the result, which is checked. The server reports the type
            in any case.
          timeout_in_ms: How long it may take, here and at the server; 0 for the client's own timeout, negative for no
            limit.

        Raises:
          InvalidValueError: If the name is not text, or the timeout is not a number.
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
          TypeMismatchError: If the arguments do not fit.
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
            advice = f"did you mean {' or '.join(near)}?" if near else "refresh() looks for new ones"
            raise AttributeError(f"Expected a method of {self!r}, found {name!r}; {advice}")
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
        says = "Calls" if not is_blocking else "Calls, and waits for,"
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
        """Ends running calls, and closes the connection. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self._calls.io.finish(self._calls.close())

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        return f"<rpc.Client{name} of {self.target}{', closed' if self._closed else ''}>"


def _seconds_of(timeout_in_ms: float, default: float = 0.0) -> float:
    """Returns a timeout in seconds, 0 for no limit: the default for 0 milliseconds, no limit for a negative number.

    Raises:
      InvalidValueError: If it is not a number.
    """
    found: object = timeout_in_ms
    if isinstance(found, bool) or not isinstance(found, numbers.Real) or math.isnan(found):
        raise InvalidValueError(f"Expected timeout_in_ms as a number, found {describe(found)}")
    return max(0.0, float(timeout_in_ms) / 1000) if timeout_in_ms else default


def _end(calls: MethodCalls) -> None:
    """Closes the connection of a client that is no longer referenced; a finalizer."""

    def end() -> None:
        start_apart(calls.end())

    calls.io.call_soon(end)
