"""Runs an exported function in a compiled loop over clients."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall, ElementFold, FoldStep
from fedstack.computations.leaves.leaf import Leaf, raise_leaf_error
from fedstack.computations.leaves.vectorized_leaf import column_leaves, copied_row, stacked_column
from fedstack.computations.leaves.xla.argument_memory import ArgumentLeaf, argument_memory, bytes_of, fill, runs_of
from fedstack.computations.leaves.xla.jax_leaf import JaxLeaf
from fedstack.computations.leaves.xla.jax_sequences import ReadSequence, elements_of, rows_of
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import exact_bytes, fields_of, least_bytes, tensor_leaves
from fedstack.computations.values.columns import Column, ConstantColumn, concatenate, empty_column
from fedstack.computations.values.tensor_values import read_only

# To call a function for several clients at once saves a few tenths of a millisecond. Memory for more clients than there
# are in a block costs more: it is filled with zeros.
_MOST_CLIENTS = 16
_MOST_BYTES = 8 << 20
# Memory for clients of the same length is often used for few of them, and to allocate more costs more than a call.
_SEQUENCE_BYTES = 2 << 20
# After so many bytes of sequences have been read, their clients run.
_READ_BYTES = 16 << 20


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
    least_seconds = 0.005  # to start a call takes JAX as long as many small functions

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
            return _looped(self.program, list(column_leaves(clients, self._parameter)), self.most, len(clients))
        except Exception as error:
            raise_leaf_error(error, self.name, first_client)

    def __repr__(self) -> str:
        return f"<LoopedLeaf {self.name}, {self.most} clients at once>"


def _looped(program: ArrayProgram, leaves: Sequence[ArgumentLeaf], most: int, clients: int) -> list[NDArray[Any]]:
    arguments = argument_memory.rows_of(leaves, most)
    shared = tuple(isinstance(column, ConstantColumn) for column, _ in leaves)
    return program.loop(most, shared, clients, arguments)


class RowsLeaf(JaxLeaf):
    """A leaf whose arguments have an unknown number of rows, and which runs a compiled loop over elements of sequences.

    The elements of a loop follow each other and have the same number of rows, such as all batches of a client but the
    last. The loop is compiled once for each number. Clients are called one by one, because they rarely have as many
    rows as others, and a loop over one client takes longer than a call.
    """

    elements_at_once = _MOST_CLIENTS

    def call_elements(self, argument: Column, first: int, client: int | None) -> Column:
        results: list[Column] = []
        try:
            leaves = list(column_leaves(argument, cast(Type, self.parameter)))
            for alike, start, stop in runs_of(leaves):
                size = bytes_of(alike) + least_bytes(self.result)
                most = 1 << max(1, min(_SEQUENCE_BYTES // max(1, size), _MOST_CLIENTS)).bit_length() - 1
                for begin in range(start, stop, most):
                    count = min(most, stop - begin)
                    some = [(column.slice(begin, begin + count), tensor) for column, tensor in alike]
                    found = _looped(self.program, some, most, count)
                    results.append(stacked_column(iter([rows[:count] for rows in found]), self.result, count))
        except Exception as error:
            raise_leaf_error(error, self.name, client)
        return concatenate(results, self.result) if results else empty_column(self.result)


class _Part:
    """A tensor or a sequence of the arguments of all clients.

    Attributes:
      column: The tensor or sequence of each client.
      tensor: The type of the tensor; `None` for a sequence.
      element: The type of the elements of the sequence; `None` for a tensor.
    """

    def __init__(self, column: Column, kind: Type) -> None:
        self.column = column
        self.tensor = kind if isinstance(kind, TensorType) else None
        self.element = kind.element if isinstance(kind, SequenceType) else None
        self._payloads = column.items() if self.element is not None else ()
        self._same: ReadSequence | None = None

    def read(self, client: int) -> ReadSequence:
        """Reads the sequence of a client; if it is the same for all clients, once."""
        if self._same is not None:
            return self._same
        found = ReadSequence(cast("Iterable[object]", self._payloads[client]), cast(Type, self.element))
        if isinstance(self.column, ConstantColumn):
            self._same = found
        return found


class LoopedSequences(LoopedLeaf):
    """A leaf that runs a compiled loop over clients, whose arguments contain sequences.

    The clients of a loop have sequences of about the same length: the same power of two. The loop is compiled once for
    each.

    Args:
      program: The function.
      parameter: The type of the argument of one client. The tensors of elements and others have known sizes.
      result: The type of the result of one client.
      alone: The function as a leaf for calls on the server.
    """

    def __init__(self, program: ArrayProgram, parameter: Type, result: Type, alone: Leaf) -> None:
        super().__init__(program, parameter, result, 1, alone)
        self.elements_at_once = 0
        self._element_bytes = [exact_bytes(element) or 0 for element in elements_of(parameter)]

    def call(self, argument: object, client: int | None = None) -> object:
        if client is None:
            return self._alone.call(argument)
        return self._in_loops(ConstantColumn(argument, 1), bytearray(), lambda: client).items()[0]

    def _in_loops(self, argument: Column, done: bytearray, client: Callable[[], int | None]) -> Column:
        parts = [_Part(column, kind) for column, kind in _parts(argument, self._parameter)]
        results: list[Column] = []
        while len(done) < len(argument):
            clients = self._read(parts, range(len(done), min(len(done) + _MOST_CLIENTS, len(argument))), client)
            alike: dict[tuple[int, ...], list[int]] = {}
            for index, sequences in enumerate(clients):
                alike.setdefault(tuple([one.steps for one in sequences]), []).append(index)
            rows = [np.empty(shape, dtype) for shape, dtype in rows_of(self.result, len(clients))]
            for steps, members in alike.items():
                most = self._at_once(steps)
                for some in [members[first : first + most] for first in range(0, len(members), most)]:
                    try:
                        chosen = {len(done) + index: clients[index] for index in some}
                        shared, arguments = _stacked(parts, chosen, steps, most)
                        found = self.program.loop(most, shared, len(some), arguments)
                    except Exception as error:
                        raise_leaf_error(error, self.name, client())
                    for into, one in zip(rows, found):
                        into[some] = one[: len(some)]
            results.append(stacked_column(map(read_only, rows), self.result, len(clients)))
            done += bytes(len(clients))
        return concatenate(results, self.result) if results else empty_column(self.result)

    def _read(
        self, parts: Sequence[_Part], clients: range, first_client: Callable[[], int | None]
    ) -> list[list[ReadSequence]]:
        """Reads the sequences of some clients, until they have enough bytes for a call."""
        found: list[list[ReadSequence]] = []
        read = 0
        for client in clients:
            try:
                found.append([part.read(client) for part in parts if part.element is not None])
            except Exception as error:
                first = first_client()
                raise_leaf_error(error, self.name, None if first is None else first + len(found))
            read += self._bytes([one.steps for one in found[-1]])
            if read > _READ_BYTES:
                break
        return found

    def _bytes(self, steps: Sequence[int]) -> int:
        """Returns the size of the argument and the result of a client whose sequences have arrays of so many rows."""
        sizes = sum(number * size for number, size in zip(steps, self._element_bytes))
        return max(1, sizes + least_bytes(self._parameter) + least_bytes(self.result))

    def _at_once(self, steps: Sequence[int]) -> int:
        most = min(_SEQUENCE_BYTES // self._bytes(steps), _MOST_CLIENTS)
        return 1 << max(1, most).bit_length() - 1


def _stacked(
    parts: Sequence[_Part], clients: Mapping[int, Sequence[ReadSequence]], steps: Sequence[int], most: int
) -> tuple[tuple[bool, ...], list[object]]:
    """Returns which tensors are the same for all clients, and the stacked tensors.

    Args:
      parts: The arguments of all clients.
      clients: The sequences of those clients that the call processes.
      steps: The number of rows of the arrays of each sequence.
      most: The number of clients for which there is memory.
    """
    kinds: list[tuple[Sequence[int], np.dtype[Any]]] = []
    number = iter(steps)
    for part in parts:
        if part.element is not None:
            kinds += rows_of(part.element, most, next(number))
        elif part.tensor is not None and not isinstance(part.column, ConstantColumn):
            kinds.append(((most, *cast("Sequence[int]", part.tensor.shape or ())), part.tensor.dtype))
    memory = iter(argument_memory.arrays(kinds))
    shared: list[bool] = []
    arguments: list[object] = []
    position = 0
    for part in parts:
        if part.element is not None:
            sequences = [one[position] for one in clients.values()]
            arrays = [next(memory) for _ in tensor_leaves(part.element)]
            for lane, sequence in enumerate(sequences):
                sequence.fill([array[lane] for array in arrays])
            lengths = np.zeros(most, np.int32)
            lengths[: len(sequences)] = [sequence.length for sequence in sequences]
            arguments += [*arrays, lengths]
            shared += [False] * (len(arrays) + 1)
            position += 1
        elif isinstance(part.column, ConstantColumn):
            arguments.append(part.column.value)
            shared.append(True)
        else:
            rows = next(memory)
            for lane, client in enumerate(clients):
                fill(rows, part.column.slice(client, client + 1), lane)
            arguments.append(rows)
            shared.append(False)
    return tuple(shared), arguments


def _parts(column: Column, type_spec: Type) -> Iterator[tuple[Column, Type]]:
    """Yields the column and the type of each tensor and each sequence of a column."""
    if isinstance(type_spec, StructType):
        for index, (_, member) in enumerate(fields_of(type_spec)):
            yield from _parts(column.field(index), member)
    else:
        yield column, type_spec
