"""Defines `explain`, which describes the steps of a computation or the executors of a context."""

import html
from typing import cast

from fedstack.computations.plan.explanation import Explanation, explain_function
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import CLIENTS, ConcreteComputation, Executor, ExecutorFactory
from fedstack.contexts.invocation import closed_error
from fedstack.errors import ClosedError, InvalidComputationError
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.value_text import describe


class StackExplanation:
    """The stack of executors on which a context runs computations.

    As text, each executor is indented below the executor that calls it.

    Attributes:
      title: The class name of the context.
      lines: The depth and the label of each executor, from the top of the stack.
    """

    def __init__(self, title: str, executor: Executor) -> None:
        self.title = title
        self.lines: list[tuple[int, str]] = []
        self._add(executor, 0)

    def _add(self, executor: Executor, depth: int) -> None:
        if not isinstance(executor, VerbExecutor):  # an executor of another package
            self.lines.append((depth, type(executor).__name__))
            return
        self.lines.append((depth, executor.label))
        for inner in executor.below:
            self._add(inner, depth + 1)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"{'  ' * (depth + 1)}{label}" for depth, label in self.lines)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks."""
        rows = "".join(
            f'<tr><td style="text-align: left; padding-left: {2 * depth + 1}em">{html.escape(label)}</td></tr>'
            for depth, label in self.lines
        )
        return f"<table><tr><th>{html.escape(self.title)}</th></tr>{rows}</table>"


def explain(computation: object, num_clients: int | None = None) -> Explanation | StackExplanation:
    """Explains a computation without running it, or shows the executor stack of a context.

    For a computation, the explanation lists the steps on the server and on the clients in order. Each step shows the
    functions that run, the values that each client receives or contributes to an aggregation, and the sizes of these
    values. With workers, less data is sent: a worker receives a value for all its clients only once, and responds with
    partial results. Print the explanation to read it; a notebook shows it as a table.

    >>> import federated_language as fl
    >>> import numpy as np
    >>> @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    ... def mean(values):
    ...     return fl.federated_mean(values)
    >>> print(fedstack.explain(mean, num_clients=1000))
    ({float32}@CLIENTS -> float32@SERVER)
    1. on each of 1,000 clients
       has          arg             float32  4 B
       contributes  federated_mean  float32  4 B
       total        0 B to the clients, 3.906 KiB back

    Args:
      computation: A computation, or an execution context of fedstack.
      num_clients: The number of clients. For a computation, totals are computed for this number, and are omitted by
        default. For a context, the stack is created for this number, which defaults to the context's
        `default_num_clients`, but at least 1.

    Returns:
      An `Explanation` of a computation, or a `StackExplanation` of a context.

    Raises:
      InvalidValueError: If `num_clients` is not a non-negative integer.
      InvalidComputationError: If `computation` is neither a computation nor a context, or cannot run.
      ClosedError: If `computation` is a closed context.
    """
    if num_clients is not None:
        num_clients = check_whole_number("num_clients", num_clients, 0)
    factory = cast("ExecutorFactory | None", getattr(computation, "executor_factory", None))
    if factory is not None:
        if num_clients is None:
            known = factory.default_num_clients if isinstance(factory, ResourceManagingExecutorFactory) else 0
            num_clients = max(1, known)  # a stack for zero clients would differ
        try:
            executor = factory.create_executor({CLIENTS: num_clients})
        except ClosedError:  # its message names the factory, which the user may not know
            raise closed_error() from None
        return StackExplanation(type(computation).__name__, executor)
    if not isinstance(computation, ConcreteComputation):
        advice = "; decorate it as a computation, with the types of its parameters" if callable(computation) else ""
        raise InvalidComputationError(
            f"Expected a computation or an execution context to explain, found {describe(computation)}{advice}"
        )
    return explain_function(plans.plan(computation.to_proto()), computation.type_signature, num_clients)
