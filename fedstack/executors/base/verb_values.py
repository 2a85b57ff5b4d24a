"""Defines the base of all values of fedstack's executors, and of the recorders that make them."""

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
        """The executor that made the value."""
        return self._executor

    @property
    def reference(self) -> object:
        return self

    async def compute(self) -> object:
        """Computes the value and returns it in the form that the language's `ExecutorValue` promises.

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
    """Returns the error for computing a function."""
    return TypeMismatchError(f"Expected a value to compute, found a function of type {type_spec}; call it first")


V = TypeVar("V", bound=VerbValue)
Source = ConcreteComputation | computation_pb2.Computation


class Recorder(abc.ABC, Generic[V]):
    """Makes the values of one executor, which has checked their parts.

    Attributes:
      waits: Whether making a value may wait, without blocking the event loop.
    """

    waits: bool = True

    @property
    def engine(self) -> Engine | None:
        """Runs traced functions; `None` if they can only be run through the verbs."""
        return None

    @property
    def known_clients(self) -> int | None:
        """The number of clients that values have to be for; `None` if that is not known."""
        return None

    def check(self, value: V, role: str) -> None:
        """Raises if a value of this executor can no longer be used."""

    @abc.abstractmethod
    async def known(self, owner: "VerbExecutor", payload: object, type_spec: Type) -> V:
        """Embeds a payload that fits its type."""

    @abc.abstractmethod
    async def computation(
        self, owner: "VerbExecutor", message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> V:
        """Embeds a computation: a function to call, or a computation of a value.

        Args:
          owner: The executor.
          message: The computation.
          type_spec: Its type.
          source: The object that the message was made of. A Python function lives as long as this object.
        """

    @abc.abstractmethod
    async def call(self, owner: "VerbExecutor", function: V, argument: V | None, type_spec: Type) -> V:
        """Records a call with a result of the given type."""

    @abc.abstractmethod
    async def struct(
        self, owner: "VerbExecutor", names: Sequence[str | None], members: Sequence[V], type_spec: Type
    ) -> V:
        """Records a struct of values."""

    @abc.abstractmethod
    async def selection(self, owner: "VerbExecutor", source: V, index: int, type_spec: Type) -> V:
        """Records the selection of a member."""
