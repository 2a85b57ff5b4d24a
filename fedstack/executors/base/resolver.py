"""Resolves what is called into a traced function of one argument: names, lambdas, and functions in the argument."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedstack.computations.plan.graph import (
    Callee,
    Function,
    Node,
    Pack,
    Parameter,
    Scope,
    Selection,
    Symbol,
    needed_for,
    nodes_of,
    select,
)
from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.symbol_checks import check_result
from fedstack.computations.plan.trace import Tracer
from fedstack.computations.types.language import StructType, Type, computation_pb2
from fedstack.errors import ResourceLimitError

if TYPE_CHECKING:
    from fedstack.executors.base.lazy_values import LazyValue


class ResolvedCall:
    """A call with all names resolved.

    Args:
      computation: What is called: a function, or what yields a value.
      result: The type of the result.
      argument: What it is called with, if there are functions in that.

    Attributes:
      function: The traced function.
      members: The members of its parameter; `None` where that is the argument as it is.

    Raises:
      InvalidComputationError: If the computation is malformed.
      TypeMismatchError: If functions in the argument do not fit.
    """

    def __init__(self, computation: computation_pb2.Computation, result: Type, argument: "LazyValue | None") -> None:
        self.members: list[LazyValue] | None = None
        if argument is None:
            self.function = plans.plan(computation)
        else:
            self.members = []
            self.function = _traced(computation, result, argument, self.members)

    def reads(self, path: Sequence[int]) -> set[int] | None:
        """Returns the positions of the parameter that a member of the result needs; `None` for the parameter whole."""
        symbol, parameter = self.function.result, self.function.parameter
        for position in path:
            if symbol is parameter:
                return {position}
            if not isinstance(symbol, Pack):
                break  # whatever member of what a node yields is wanted, the node has to run
            symbol = symbol.members[position]
        wanted: set[int] = set()
        for node in needed_for(symbol, self.function.nodes):
            if isinstance(node, Selection) and node.source is parameter:
                wanted.add(node.position)
            elif any(leaf is parameter for operand in node.operands() for leaf in nodes_of(operand)):
                return None
        return None if any(leaf is parameter for leaf in nodes_of(symbol)) else wanted


def _traced(
    computation: computation_pb2.Computation, result: Type, argument: "LazyValue", free: "list[LazyValue]"
) -> Function:
    """Traces a call whose argument has functions in it; the data in it become members of one parameter."""
    placeholders = argument.symbol(Scope(), free)
    scope = Scope()
    parameter = Parameter(StructType([value.type_signature for value in free]), scope)
    members = iter([select(parameter, position) for position in range(len(free))])

    def rebuild(symbol: Symbol) -> Symbol:
        if isinstance(symbol, Node):
            return next(members)
        if isinstance(symbol, Pack):
            return Pack(symbol.names, tuple(rebuild(member) for member in symbol.members))
        return symbol

    try:
        traced = Tracer().apply(Callee(computation), rebuild(placeholders), scope)
        check_result(traced, result)
    except RecursionError:
        raise ResourceLimitError("Expected functions that call each other less deeply, found Python's limit") from None
    return Function(scope, parameter, traced)
