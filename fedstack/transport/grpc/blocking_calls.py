"""Makes calls that block the thread they are made on, over a channel of their own.

The transport's loop has no part in them. To hand a small call to it, and the answer back, takes three changes of
threads, and these a quarter of the time of the call. Whoever blocks in any case had better make the call himself.
"""

import contextvars
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from fedstack.errors import ClosedError, DeadlineExceededError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.wire.heartbeat import held_up, silent
from fedstack.transport.wire.status import DETAILS_KEY

Metadata: TypeAlias = tuple[tuple[str, str], ...]


class _Lane:
    """A channel.

    Args:
      channel: The channel.

    Attributes:
      has_answered: Whether the peer has answered a call over it.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.has_answered = False
        self._channel = channel
        self._methods: dict[str, Any] = {}

    def method(self, path: str) -> Any:
        """Returns what calls a method; made once, since that costs as much as a call."""
        found = self._methods.get(path)
        if found is None:
            found = self._methods[path] = cast(Any, self._channel).unary_unary(path)
        return found

    def close(self) -> None:
        """Ends the calls that run."""
        self._channel.close()


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
        self._lane: _Lane | None = None
        self._lanes: weakref.WeakSet[_Lane] = weakref.WeakSet()  # those too over which only calls go on

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
        lane, begun = self._lane or self._open(who), time.monotonic()
        try:
            answer = lane.method(path)(request, timeout=seconds, metadata=metadata)
        except ValueError as error:  # how a channel says that it is closed
            if not self._closed:
                raise
            raise _closed_error(who) from error
        except grpc.RpcError as failure:
            call = cast("grpc.Call", failure)
            if any(key == DETAILS_KEY for key, _ in call.trailing_metadata() or ()):
                raise  # the peer says so
            if call.code() is grpc.StatusCode.UNAVAILABLE:
                self._leave(lane)
            if call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            late = time.monotonic() - begun - seconds
            raise _held_up(late, who) if held_up(late, seconds) else silent(who, seconds) from None
        lane.has_answered = True
        return cast(bytes, answer)

    def _open(self, who: str) -> _Lane:
        with self._lock:
            if self._closed:
                raise _closed_error(who)
            if self._lane is None:
                # What gRPC begins with a channel keeps the context variables for good.
                self._lane = _Lane(contextvars.Context().run(self._open_channel))
                self._lanes.add(self._lane)
            return self._lane

    def _leave(self, lane: _Lane) -> None:
        """Lets the next call dial anew: a channel that has lost its connection may wait for seconds before it does.

        One that has had none waits: what it dials may be full, and each call would be a knock at its door.
        """
        with self._lock:
            if self._lane is lane and lane.has_answered:
                self._lane = None

    def close(self) -> None:
        """Ends the calls that run. Idempotent."""
        with self._lock:
            self._closed = True
            self._lane, lanes = None, list(self._lanes)
        for lane in lanes:
            lane.close()

    def __repr__(self) -> str:
        return f"<BlockingCalls{' closed' if self._closed else ''}>"


def _closed_error(who: str) -> ClosedError:
    return ClosedError(f"The connection to {who} is closed; make a new one")


def _held_up(late: float, who: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"This process stood still for {late:.3g} seconds during a call of {who}, as under a debugger or on a full "
        "machine, and the answer came too late; the call may have been done"
    )
