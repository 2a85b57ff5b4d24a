"""Defines the base classes of the values of fedstack's executors and of the recorders that create these values."""

import abc
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from fedstack.computations.types.language import ConcreteComputation, ExecutorValue, Type, computation_pb2
from fedstack.computations.values.containers import to_structure
from fedstack.errors import FedstackError, TypeMismatchError
from fedstack.executors.base.engines import Engine
from fedstack.foundations.traceback_filter import without_own_frames

if TYPE_CHECKING:
    from fedstack.executors.base.verb_executor import VerbExecutor


class VerbValue(ExecutorValue):
    """A value of one of fedstack's executors."""

    __slots__ = ("_executor", "_type")

    # Whether the payload that `pull` returns is kept for the next pull.
    keeps_payload = True

    def __init__(self, executor: "VerbExecutor", type_spec: Type) -> None:
        self._executor = executor
        self._type = type_spec

    @property
    def type_signature(self) -> Type:
        return self._type

    @property
    def executor(self) -> "VerbExecutor":
        """The executor that created the value."""
        return self._executor

    @property
    def reference(self) -> object:
        return self

    async def compute(self) -> object:
        """Computes the value and returns it in the form that the language specifies for `ExecutorValue.compute`.

        Raises:
          TypeMismatchError: If the value is a function.
        """
        try:
            payload = await self._executor.computed(self)
            kept = self.keeps_payload
            return await self._executor.finish(lambda: to_structure(payload, self._type, kept=kept), self._type)
        except (FedstackError, asyncio.CancelledError) as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    @abc.abstractmethod
    async def pull(self) -> object:
        """Computes the value and returns its payload."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self._type}>"


def function_error(type_spec: Type) -> TypeMismatchError:
    """Returns the error for an attempt to compute a function."""
    return TypeMismatchError(f"Expected a value to compute, found a function of type {type_spec}; call it first")


V = TypeVar("V", bound=VerbValue)
Source = ConcreteComputation | computation_pb2.Computation


class Recorder(abc.ABC, Generic[V]):
    """The part of an executor that creates its values. The executor checks the arguments before it calls the recorder.

    Attributes:
      waits: Whether the creation of a value may wait, without blocking the event loop.
    """

    waits: bool = True

    @property
    def engine(self) -> Engine | None:
        """The engine that runs traced functions; `None` if functions can only run through the verbs."""
        return None

    @property
    def known_clients(self) -> int | None:
        """The number of clients that federated values must have; `None` if it is unknown."""
        return None

    def check(self, value: V, role: str) -> None:
        """Raises an error if a value of this executor is no longer usable.

        Args:
          value: The value.
          role: The role of the value in the call, for the error message.
        """

    @abc.abstractmethod
    async def known(self, owner: "VerbExecutor", payload: object, type_spec: Type) -> V:
        """Returns a value for a payload, which must fit its type."""

    @abc.abstractmethod
    async def computation(
        self, owner: "VerbExecutor", message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> V:
        """Returns a value for a computation, which is either a function to call or computes a value.

        Args:
          owner: The executor.
          message: The computation.
          type_spec: The type of the computation.
          source: The object from which the message was created. A Python function lives as long as this object.
        """

    @abc.abstractmethod
    async def call(self, owner: "VerbExecutor", function: V, argument: V | None, type_spec: Type) -> V:
        """Records a call and returns its result, a value of the given type."""

    @abc.abstractmethod
    async def struct(
        self, owner: "VerbExecutor", names: Sequence[str | None], members: Sequence[V], type_spec: Type
    ) -> V:
        """Records a struct and returns it as a value."""

    @abc.abstractmethod
    async def selection(self, owner: "VerbExecutor", source: V, index: int, type_spec: Type) -> V:
        """Records the selection of a member of a struct and returns the member as a value."""
