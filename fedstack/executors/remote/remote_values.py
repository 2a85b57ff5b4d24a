"""Defines the values that another process holds."""

import contextlib
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol, cast

from fedstack.computations.leaves.portability import intrinsics_of
from fedstack.computations.plan.intrinsics import INTRINSICS
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.language import ConcreteComputation, ExecutorValue, Type, computation_pb2
from fedstack.computations.values.containers import to_structure
from fedstack.errors import InvalidValueError, RemoteError
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.transport.wire.status import RemoteTraceback


class Fetches(Protocol):
    """An executor that brings values here."""

    async def fetch(self, value: "RemoteValue", /) -> object:
        """Runs what a value needs, and returns its payload."""
        ...


class RemoteValue(ExecutorValue):
    """A value that another process holds. When nobody refers to it any more, that process may let go of it.

    Attributes:
      keeper: Looks after the session that it belongs to.
      id: Its id there.
      source: What it was made of: a computation, or other values.
    """

    def __init__(
        self, executor: Fetches, keeper: SessionKeeper, value_id: str, type_spec: Type, source: object = None
    ) -> None:
        self._executor = executor
        self._type = type_spec
        self.keeper = keeper
        self.source = source  # a Python function lives as long as the computation made of it
        self.id = value_id
        # At exit nobody needs it: the session ends, or its lease does.
        weakref.finalize(self, keeper.forget, value_id).atexit = False

    @property
    def session(self) -> RemoteSession:
        """The session that the value belongs to."""
        return self.keeper.session

    @property
    def type_signature(self) -> Type:
        return self._type

    @property
    def executor(self) -> Fetches:
        """The executor that made the value."""
        return self._executor

    @property
    def reference(self) -> object:
        return self.id

    async def compute(self) -> object:
        """Runs what the value needs, fetches it and returns it.

        Raises:
          TypeMismatchError: If the value is a function.
          WorkerUnavailableError: If the peer has gone away.
        """
        payload = await self._executor.fetch(self)
        return to_structure(payload, self._type, kept=False)

    def __repr__(self) -> str:
        return f"<RemoteValue of type {self._type} at {self.session.stub.address}>"


@contextlib.contextmanager
def naming_intrinsics(*values: RemoteValue | None) -> Generator[None, None, None]:
    """Names what a plain peer may not know, where it refuses what values were made of: it says so in other words."""
    try:
        yield
    except (InvalidValueError, RemoteError) as error:
        if isinstance(error.__cause__, RemoteTraceback):
            raise  # one of ours, and it says what it means
        found = dict.fromkeys(filter(_is_lowered, _intrinsics_in(values)))
        if not found:
            raise
        place = f"not every executor service runs {', '.join(found)}: use a context, which does that in this process"
        raise with_place(error, place) from error.__cause__


def _intrinsics_in(source: object) -> Iterator[str]:
    """Yields the intrinsics in what values of plain peers were made of."""
    if isinstance(source, ConcreteComputation):
        source = source.to_proto()
    if isinstance(source, computation_pb2.Computation):
        yield from intrinsics_of(source)
    elif isinstance(source, RemoteValue) and source.session.peer is None:
        yield from _intrinsics_in(source.source)
    elif isinstance(source, (tuple, list)):
        for part in cast("Sequence[object]", source):
            yield from _intrinsics_in(part)


def _is_lowered(uri: str) -> bool:
    """Tells whether other systems write an intrinsic as other ones before they send it."""
    intrinsic = INTRINSICS.get(uri)
    aggregates = intrinsic is not None and intrinsic.aggregates and uri != "federated_aggregate"
    return aggregates or uri.startswith("generic_") or uri in ("sequence_sum", "federated_secure_select")
