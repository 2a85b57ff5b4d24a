"""Defines the values that another process holds."""

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from fedstack.computations.leaves.portability import intrinsics_of
from fedstack.computations.plan.intrinsics import INTRINSICS
from fedstack.computations.types.language import ConcreteComputation, FunctionType, Type, computation_pb2
from fedstack.errors import FedstackError, InvalidValueError, RemoteError
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.base.verb_values import VerbValue, function_error
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.foundations.error_text import with_place
from fedstack.transport.wire.status import RemoteTraceback

if TYPE_CHECKING:
    from fedstack.executors.remote.remote_recorder import RemoteRecorder


class SessionValue(VerbValue):
    """A value in another process, which may release it once nothing refers to this anymore.

    Attributes:
      keeper: Keeps the session that it belongs to.
      id: Its id there.
      source: Its source: a computation, or other values; empty once it has run.
    """

    keeps_payload = False

    def __init__(
        self,
        executor: VerbExecutor,
        fetcher: "RemoteRecorder",
        keeper: SessionKeeper,
        value_id: str,
        type_spec: Type,
        source: object = None,
    ) -> None:
        super().__init__(executor, type_spec)
        self._fetcher = fetcher
        self.keeper = keeper
        self.source = source  # a Python function lives as long as the computation made from it
        self.id = value_id
        # Not needed at exit: the session ends, or its lease expires.
        weakref.finalize(self, keeper.forget, value_id).atexit = False

    @property
    def session(self) -> RemoteSession:
        """The session that the value belongs to."""
        return self.keeper.session

    @property
    def reference(self) -> object:
        return self.id

    def has_run(self) -> None:
        """Releases its source: in a chain of calls, each value would keep the previous one at the peer."""
        self.source = None

    async def pull(self) -> object:
        """Computes the value and fetches its payload.

        Raises:
          WorkerUnavailableError: If the peer has gone away.
        """
        self._executor.check_open()
        self._fetcher.check(self, "the value")
        if isinstance(self._type, FunctionType):
            raise function_error(self._type)
        return await self._fetcher.fetch(self)

    def __repr__(self) -> str:
        return f"<SessionValue of type {self._type} at {self.session.stub.address}>"


def naming_intrinsics(error: FedstackError, *values: SessionValue | None) -> FedstackError:
    """Returns an error that names intrinsics that a plain peer may not know; the peer's own error uses other words."""
    if not isinstance(error, (InvalidValueError, RemoteError)) or isinstance(error.__cause__, RemoteTraceback):
        return error  # one of fedstack's errors, which is clear already
    found = dict.fromkeys(filter(_is_lowered, _intrinsics_in(values)))
    if not found:
        return error
    place = f"not every executor service runs {', '.join(found)}: use a context, which does that in this process"
    return with_place(error, place)


def _intrinsics_in(source: object) -> Iterator[str]:
    """Yields the intrinsics in the sources of plain peers' values."""
    if isinstance(source, ConcreteComputation):
        source = source.to_proto()
    if isinstance(source, computation_pb2.Computation):
        yield from intrinsics_of(source)
    elif isinstance(source, SessionValue) and source.session.peer is None:
        yield from _intrinsics_in(source.source)
    elif isinstance(source, (tuple, list)):
        for part in cast("Sequence[object]", source):
            yield from _intrinsics_in(part)


def _is_lowered(uri: str) -> bool:
    """Returns whether other systems lower an intrinsic to other intrinsics before they send it."""
    intrinsic = INTRINSICS.get(uri)
    aggregates = intrinsic is not None and intrinsic.aggregates and uri != "federated_aggregate"
    return aggregates or uri.startswith("generic_") or uri in ("sequence_sum", "federated_secure_select")
