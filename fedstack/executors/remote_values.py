"""Defines the values that another process holds."""

import weakref
from typing import TYPE_CHECKING

from fedstack.computations.containers import to_structure
from fedstack.computations.language import ExecutorValue, Type
from fedstack.executors.remote_sessions import RemoteSession
from fedstack.executors.session_keeper import SessionKeeper

if TYPE_CHECKING:
    from fedstack.executors.remote_executor import RemoteExecutor


class RemoteValue(ExecutorValue):
    """A value that another process holds. When nobody refers to it any more, that process may let go of it.

    Attributes:
      keeper: Looks after the session that it belongs to.
      id: Its id there.
    """

    def __init__(
        self, executor: "RemoteExecutor", keeper: SessionKeeper, value_id: str, type_spec: Type, source: object = None
    ) -> None:
        self._executor = executor
        self._type = type_spec
        self.keeper = keeper
        self._source = source  # a Python function lives as long as the computation made of it
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
    def executor(self) -> "RemoteExecutor":
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
