"""Defines the values of remote executors, which are stored in another process."""

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
    """A value in another process. The peer may release the value once this object is garbage-collected.

    Attributes:
      keeper: The keeper of the session to which the value belongs.
      id: The id of the value in the session.
      source: The computation or the values from which the value was created; `None` once the value has been computed.
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
        self.source = source  # keeps the computation object alive, and with it the Python function
        self.id = value_id
        # No disposal at exit, because the session ends or its lease expires.
        weakref.finalize(self, keeper.forget, value_id).atexit = False

    @property
    def session(self) -> RemoteSession:
        """The session to which the value belongs."""
        return self.keeper.session

    @property
    def reference(self) -> object:
        return self.id

    def has_run(self) -> None:
        """Drops the source once the value has been computed.

        Otherwise, each value in a chain of calls would keep the previous value on the peer.
        """
        self.source = None

    async def pull(self) -> object:
        """Computes the value and fetches its payload.

        Raises:
          WorkerUnavailableError: If the peer is no longer reachable.
        """
        self._executor.check_open()
        self._fetcher.check(self, "the value")
        if isinstance(self._type, FunctionType):
            raise function_error(self._type)
        return await self._fetcher.fetch(self)

    def __repr__(self) -> str:
        return f"<SessionValue of type {self._type} at {self.session.stub.address}>"


def naming_intrinsics(error: FedstackError, *values: SessionValue | None) -> FedstackError:
    """Returns an error that names the intrinsics that may be unknown to a peer without fedstack's extensions.

    Such a peer's own error message might not name them.

    Args:
      error: The error of the peer.
      values: The values of the failed call.
    """
    if not isinstance(error, (InvalidValueError, RemoteError)) or isinstance(error.__cause__, RemoteTraceback):
        return error  # an error of fedstack, which is already clear
    found = dict.fromkeys(filter(_is_lowered, _intrinsics_in(values)))
    if not found:
        return error
    place = f"not every executor service supports {', '.join(found)}; use a context, which runs these in this process"
    return with_place(error, place)


def _intrinsics_in(source: object) -> Iterator[str]:
    """Yields the intrinsics in the sources of values, for values on peers without fedstack's extensions."""
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
    """Returns whether other systems replace an intrinsic with simpler intrinsics before they send a computation."""
    intrinsic = INTRINSICS.get(uri)
    aggregates = intrinsic is not None and intrinsic.aggregates and uri != "federated_aggregate"
    return aggregates or uri.startswith("generic_") or uri in ("sequence_sum", "federated_secure_select")
