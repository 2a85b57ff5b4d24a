"""Runs an exported function in a compiled loop over clients."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall, ElementFold, FoldStep
from fedstack.computations.leaves.leaf import Leaf, raise_leaf_error
from fedstack.computations.leaves.vectorized_leaf import column_leaves, copied_row, stacked_column
from fedstack.computations.leaves.xla.argument_memory import argument_memory
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import exact_bytes
from fedstack.computations.values.columns import Column, ConstantColumn, concatenate, empty_column

# To call a function for several clients at once saves a few tenths of a millisecond.
_MOST_CLIENTS = 16
_MOST_BYTES = 16 << 20


def clients_at_once(parameter: Type, result: Type) -> int:
    """Returns for how many clients a function of these types is called at once, which does not affect results."""
    sizes = exact_bytes(parameter), exact_bytes(result)
    if None in sizes:
        return 1
    most = min(_MOST_BYTES // max(1, sum(filter(None, sizes))), _MOST_CLIENTS)
    return 1 << max(1, most).bit_length() - 1


class LoopedLeaf(BoundOperation):
    """A leaf that runs a compiled loop over clients. What a client's result is does not depend on the others.

    Unlike those of a vectorized leaf, clients may be in any lane, and fewer clients take less time.

    Args:
      program: The function.
      parameter: The type of the argument of one client.
      result: The type of the result of one client.
      most: The number of clients that one call processes.
      alone: The function as a leaf for calls on the server.
    """

    prefers_columns = True
    least_seconds = 0.005  # each call passes from thread to thread in JAX

    def __init__(self, program: ArrayProgram, parameter: Type, result: Type, most: int, alone: Leaf) -> None:
        self.name = alone.name
        self.parameter = self._parameter = parameter
        self.result = result
        self.most = most
        self.program = program
        self.elements_at_once = most
        self._alone = alone

    def call(self, argument: object, client: int | None = None) -> object:
        if client is None:
            return self._alone.call(argument)
        return copied_row(self._called(ConstantColumn(argument, 1), client), 0, self.result)

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        assert argument is not None, "a loop is over arguments"
        done = bytearray()
        with ColumnCall(first_client, done):
            return self._in_loops(argument, done, lambda: first_client + len(done))

    def call_elements(self, argument: Column, first: int, client: int | None) -> Column:
        return self._in_loops(argument, bytearray(), lambda: client)

    def element_fold(self, step: FoldStep) -> ElementFold | None:
        return self._alone.element_fold(step)

    def _in_loops(self, argument: Column, done: bytearray, client: Callable[[], int | None]) -> Column:
        results: list[Column] = []
        while len(done) < len(argument):
            count = min(self.most, len(argument) - len(done))
            found = self._called(argument.slice(len(done), len(done) + count), client())
            results.append(stacked_column(iter([rows[:count] for rows in found]), self.result, count))
            done += bytes(count)
        return concatenate(results, self.result) if results else empty_column(self.result)

    def _called(self, clients: Column, first_client: int | None) -> list[NDArray[Any]]:
        try:
            leaves = list(column_leaves(clients, self._parameter))
            arguments = argument_memory.rows_of(leaves, self.most)
            shared = tuple(isinstance(column, ConstantColumn) for column, _ in leaves)
            return self.program.loop(self.most, shared, len(clients), arguments)
        except Exception as error:
            raise_leaf_error(error, self.name, first_client)

    def __repr__(self) -> str:
        return f"<LoopedLeaf {self.name}, {self.most} clients at once>"
