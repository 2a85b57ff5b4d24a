"""Makes calls that block the thread they are made on, over a channel of their own.

The transport's loop has no part in them. To hand a small call to it, and the answer back, takes three changes of
threads. Without this module a call of a method in its blocking form takes 1.3 to 1.4 times as long, one of 64 kB too
(`benchmarks --only methods`, the rows with one call at a time).
"""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from fedstack.errors import ClosedError, DeadlineExceededError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.wire.heartbeat import held_up, silent
from fedstack.transport.wire.status import DETAILS_KEY

Metadata: TypeAlias = tuple[tuple[str, str], ...]


class BlockingCalls:
    """Calls to one peer, of one message each way. Any thread may make them but that of the transport's loop.

    Args:
      open_channel: Opens the channel, when it is first needed.
    """

    def __init__(self, open_channel: Callable[[], grpc.Channel]) -> None:
        self._open_channel = open_channel
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without a channel: one of a parent's process is of no use in a forked child."""
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Any] = {}

    def call(self, path: str, request: bytes, seconds: float, metadata: Metadata, who: str) -> bytes:
        """Calls a method and returns its answer.

        Args:
          path: The method.
          request: The message.
          seconds: How long it may take.
          metadata: What goes with it.
          who: What errors call the peer.

        Raises:
          grpc.RpcError: If it fails.
          DeadlineExceededError: If the peer does not answer in time.
          ClosedError: If this is closed, also while the call runs.
        """
        fork_guard.check()
        method, begun = self._methods.get(path) or self._open(path, who), time.monotonic()
        try:
            return cast(bytes, method(request, timeout=seconds, metadata=metadata))
        except ValueError as error:  # how a channel says that it is closed
            if not self._closed:
                raise
            raise _closed_error(who) from error
        except grpc.RpcError as failure:
            call = cast("grpc.Call", failure)
            is_of_peer = any(key == DETAILS_KEY for key, _ in call.trailing_metadata() or ())
            if is_of_peer or call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            late = time.monotonic() - begun - seconds
            raise _held_up(late, who) if held_up(late, seconds) else silent(who, seconds) from None

    def _open(self, path: str, who: str) -> Any:
        """Returns what calls a method; made once, since that costs as much as a call."""
        with self._lock:
            if self._closed:
                raise _closed_error(who)
            if self._channel is None:
                # What gRPC begins with a channel keeps the context variables for good.
                self._channel = contextvars.Context().run(self._open_channel)
            method = self._methods[path] = cast(Any, self._channel).unary_unary(path)
            return method

    def close(self) -> None:
        """Ends the calls that run. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            self._methods.clear()
        if channel is not None:
            channel.close()

    def __repr__(self) -> str:
        return f"<BlockingCalls{' closed' if self._closed else ''}>"


def _closed_error(who: str) -> ClosedError:
    return ClosedError(f"The connection to {who} is closed; make a new one")


def _held_up(late: float, who: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"This process stood still for {late:.3g} seconds during a call of {who}, as under a debugger or on a full "
        "machine, and the answer came too late; the call may have been done"
    )
