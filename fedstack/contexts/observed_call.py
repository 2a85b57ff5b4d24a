"""Tells observers of calls."""

import time
from types import TracebackType
from typing import Any

from fedstack.computations.types.language import ConcreteComputation
from fedstack.observe.events import CallEnded, CallRetried, CallStarted
from fedstack.observe.observers import observers
from fedstack.observe.spans import Span


class ObservedCall:
    """A call of a computation; observers are told when it begins and when it ends, as a context manager.

    Args:
      computation: The computation.
      outer: Where it is called.

    Attributes:
      span: Its own.
      clients: How many clients it has, once that is known.
    """

    def __init__(self, computation: ConcreteComputation, outer: Span) -> None:
        self.span = outer.new_call()
        self.clients = 0
        self._attempts = 0
        self._name = name_of_computation(computation)
        self._ids: dict[str, Any] = {"trace": self.span.trace, "call": self.span.call, "parent": outer.id}
        self._begin = time.perf_counter()

    def __enter__(self) -> "ObservedCall":
        observers.tell(CallStarted(**self._ids, computation=self._name))
        return self

    def retried(self, pause: float, error: Exception) -> None:
        """Tells that an attempt has failed and another one follows."""
        self._attempts += 1
        said = type(error).__name__
        observers.tell(CallRetried(**self.span.ids, attempt=self._attempts, pause=pause, error=said))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        observers.tell(
            CallEnded(
                **self._ids,
                computation=self._name,
                clients=self.clients,
                seconds=time.perf_counter() - self._begin,
                error="" if kind is None else kind.__name__,
            )
        )


def name_of_computation(computation: ConcreteComputation) -> str:
    """Returns the name of the function that a computation was made of; empty if it has none.

    The language keeps no name of federated computations, but names their parameter and their locals after it.
    """
    name = getattr(computation, "__name__", "")
    if name:
        return name
    function = getattr(computation.to_proto(), "lambda")
    if function.parameter_name:
        return function.parameter_name.removesuffix("_arg")
    local = function.result.block.local
    return local[0].name.removeprefix("fc_").rpartition("_symbol_")[0] if local else ""
