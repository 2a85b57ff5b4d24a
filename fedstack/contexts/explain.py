"""Defines `explain`: a readable description of what a computation does, or of the executors of a context."""

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
    """The stack of executors that a context runs computations on. An executor is above those with deeper indentation.

    Attributes:
      title: The context.
      lines: The depth and the label of each executor.
    """

    def __init__(self, title: str, executor: Executor) -> None:
        self.title = title
        self.lines: list[tuple[int, str]] = []
        self._add(executor, 0)

    def _add(self, executor: Executor, depth: int) -> None:
        if not isinstance(executor, VerbExecutor):  # one of another package
            self.lines.append((depth, type(executor).__name__))
            return
        self.lines.append((depth, executor.label))
        for inner in executor.below:
            self._add(inner, depth + 1)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"{'  ' * (depth + 1)}{label}" for depth, label in self.lines)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the table that notebooks show."""
        rows = "".join(
            f'<tr><td style="text-align: left; padding-left: {2 * depth + 1}em">{html.escape(label)}</td></tr>'
            for depth, label in self.lines
        )
        return f"<table><tr><th>{html.escape(self.title)}</th></tr>{rows}</table>"


def explain(computation: object, num_clients: int | None = None) -> Explanation | StackExplanation:
    """Explains what a computation does when it is called, without running it; or what a context runs computations on.

    For a computation it lists what runs at the server and at the clients, in order: the functions, what each client
    receives, what it contributes to which aggregation, and the sizes of these. With workers less data travels: a worker
    receives only once what all its clients receive, and answers with partial results. Print the result; a notebook
    shows a table.

    >>> import federated_language as fl
    >>> import numpy as np
    >>> @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    ... def mean(values):
    ...     return fl.federated_mean(values)
    >>> print(fedstack.explain(mean, num_clients=1000))
    ({float32}@CLIENTS -> float32@SERVER)
    1. at each of 1,000 clients
       has          arg             float32  4 B
       contributes  federated_mean  float32  4 B
       in all       0 B to the clients, 3.906 KiB back

    Args:
      computation: A computation, or an execution context of fedstack.
      num_clients: The number of clients that totals are for; by default there are no totals. For a context, the number
        that its stack is made for; by default its `default_num_clients`, or 1.

    Raises:
      InvalidValueError: If `num_clients` is not a number of clients.
      InvalidComputationError: If `computation` is not a computation, or one that cannot run.
      ClosedError: If it is a closed context.
    """
    if num_clients is not None:
        num_clients = check_whole_number("num_clients", num_clients, 0)
    factory = cast("ExecutorFactory | None", getattr(computation, "executor_factory", None))
    if factory is not None:
        if num_clients is None:
            known = factory.default_num_clients if isinstance(factory, ResourceManagingExecutorFactory) else 0
            num_clients = max(1, known)  # a stack without clients would differ
        try:
            executor = factory.create_executor({CLIENTS: num_clients})
        except ClosedError:  # about the factory, which the user may not know
            raise closed_error() from None
        return StackExplanation(type(computation).__name__, executor)
    if not isinstance(computation, ConcreteComputation):
        advice = "; decorate it, and state the types of its parameters" if callable(computation) else ""
        raise InvalidComputationError(
            f"Expected a computation or an execution context to explain, found {describe(computation)}{advice}"
        )
    return explain_function(plans.plan(computation.to_proto()), computation.type_signature, num_clients)
