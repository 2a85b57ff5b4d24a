"""Defines what the values of fedstack's executors have in common, and what executors ask of their recorders."""

import abc
import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from fedstack.computations.types.language import ConcreteComputation, ExecutorValue, Type, computation_pb2
from fedstack.computations.values.containers import to_structure
from fedstack.errors import FedstackError, TypeMismatchError
from fedstack.executors.base.engines import Engine
from fedstack.foundations.traceback_filter import without_own_frames

_T = TypeVar("_T")


class ValueOwner(Protocol):
    """What a value asks of the executor that made it."""

    def check_open(self) -> None:
        """Raises `ClosedError` after `close()`."""
        ...

    async def computed(self, value: "VerbValue", /) -> object:
        """Runs what a value needs, for `compute()`, and returns its payload."""
        ...

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of the given type, where streams of user code may run."""
        ...


class VerbValue(ExecutorValue):
    """A value of one of fedstack's executors."""

    __slots__ = ("_executor", "_type")

    # Whether the payload that `pull` returns is kept here, for whoever pulls it again.
    keeps_payload = True

    def __init__(self, executor: ValueOwner, type_spec: Type) -> None:
        self._executor = executor
        self._type = type_spec

    @property
    def type_signature(self) -> Type:
        return self._type

    @property
    def executor(self) -> ValueOwner:
        """The executor that made the value."""
        return self._executor

    @property
    def reference(self) -> object:
        return self

    async def compute(self) -> object:
        """Runs what the value needs and returns it, in the form that the language's `ExecutorValue` promises.

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
        """Runs what the value needs and returns its payload."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self._type}>"


def function_error(type_spec: Type) -> TypeMismatchError:
    """Returns the error for computing a function."""
    return TypeMismatchError(f"Expected a value to compute, found a function of type {type_spec}; call it first")


V = TypeVar("V", bound=VerbValue)
Source = ConcreteComputation | computation_pb2.Computation


class Recorder(abc.ABC, Generic[V]):
    """Makes the values of one executor, after that has checked what they are made of.

    Attributes:
      waits: Whether to make a value may take a while, for which the event loop goes on.
    """

    waits: bool = True

    @property
    def engine(self) -> Engine | None:
        """What runs traced functions here; `None` if they can be run through the verbs only."""
        return None

    @property
    def known_clients(self) -> int | None:
        """How many clients values have to be for; `None` if that is not known here."""
        return None

    def check(self, value: V, role: str) -> None:
        """Raises if a value that the executor made is of no use any more."""

    @abc.abstractmethod
    async def known(self, owner: ValueOwner, payload: object, type_spec: Type) -> V:
        """Embeds a payload that is known to fit its type."""

    @abc.abstractmethod
    async def computation(
        self, owner: ValueOwner, message: computation_pb2.Computation, type_spec: Type, source: Source
    ) -> V:
        """Embeds a computation: a function to call, or what yields a value.

        Args:
          owner: The executor.
          message: The computation.
          type_spec: Its type.
          source: What the message was made of. A Python function lives as long as that does.
        """

    @abc.abstractmethod
    async def call(self, owner: ValueOwner, function: V, argument: V | None, type_spec: Type) -> V:
        """Records a call that gives a result of a type."""

    @abc.abstractmethod
    async def struct(self, owner: ValueOwner, names: Sequence[str | None], members: Sequence[V], type_spec: Type) -> V:
        """Records a struct of values."""

    @abc.abstractmethod
    async def selection(self, owner: ValueOwner, source: V, index: int, type_spec: Type) -> V:
        """Records the selection of a member."""
