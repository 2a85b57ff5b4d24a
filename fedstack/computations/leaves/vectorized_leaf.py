"""Runs functions that process many clients in one call: each argument has a leading axis for the clients.

The result of a client must not depend on how clients are divided among threads and workers. But NumPy may round in
another way if an array has another size; a product of matrices uses other kernels, for example. Such a function is
therefore always called with the same number of rows, its *lanes*, which follows from its types alone. Client i is lane
i mod W of a group of W consecutive clients. The lanes of clients that are not part of the call repeat another client's
arguments, and their results are dropped.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall
from fedstack.computations.leaves.computation_pickles import containers_of, with_containers
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.python_functions import PythonLeaf
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import (
    exact_bytes,
    fields_of,
    flatten,
    is_scalar,
    join_path,
    struct_of,
    tensor_leaves,
    unflatten,
)
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    RowsColumn,
    ScalarColumn,
    StructColumn,
    concatenate,
    empty_column,
)
from fedstack.computations.values.tensor_values import is_plain, read_only
from fedstack.errors import FedstackError, InvalidComputationError
from fedstack.foundations.blas_threads import with_one_blas_thread
from fedstack.foundations.error_text import with_place

# The arguments and results of a group fit into the cache of a core.
_GROUP_BYTES = 256 << 10
_MOST_LANES = 1024
_CallGroup: TypeAlias = Callable[[Column, int, dict[int, NDArray[Any]]], object]


def check_vectorized(name: str, parameter: Type | None, result: Type | None = None) -> None:
    """Checks that a function with these types can be vectorized.

    Args:
      name: The name of the function in messages.
      parameter: The parameter type for one client.
      result: The result type for one client; `None` if it is not known yet.

    Raises:
      InvalidComputationError: If there is no parameter, or a type has other parts than tensors of known shapes.
    """
    for type_spec in (parameter, result):
        if type_spec is not None and exact_bytes(type_spec) is None:
            raise InvalidComputationError(
                f"Expected tensors of numbers with known shapes as parameters and result of the vectorized function "
                f"{name!r}, found {type_spec}; declare the shapes, or remove vectorized=True to use sequences, strings "
                "and unknown dimensions"
            )
    if parameter is None or not list(tensor_leaves(parameter)):
        raise InvalidComputationError(
            f"Expected a vectorized function with parameters, found {name!r} without any; remove vectorized=True"
        )


def lanes_of(parameter: Type, result: Type) -> int:
    """Returns the number of rows with which a vectorized function of these types is called, a power of two."""
    size = (exact_bytes(parameter) or 0) + (exact_bytes(result) or 0)
    return 1 << max(1, min(_GROUP_BYTES // max(1, size), _MOST_LANES)).bit_length() - 1


def stacked(type_spec: Type, lanes: int) -> Type:
    """Returns the type of so many values of a type as one value, whose tensors have a leading axis."""
    return cast(Type, with_containers(_stacked(type_spec, lanes), containers_of(type_spec)))


def _stacked(type_spec: Type, lanes: int) -> Type:
    if isinstance(type_spec, TensorType):
        return TensorType(type_spec.dtype.type, [lanes, *(type_spec.shape or ())])
    return struct_of((name, _stacked(member, lanes)) for name, member in fields_of(cast(StructType, type_spec)))


def unstacked(type_spec: Type, lanes: int, name: str) -> Type:
    """Returns the type of one of several values, which together have the given type.

    Args:
      type_spec: The type of all values, whose tensors have a leading axis.
      lanes: The number of values.
      name: The name of the function that returned them.

    Raises:
      InvalidComputationError: If a tensor does not have a leading axis of this size.
    """
    return cast(Type, with_containers(_unstacked(type_spec, lanes, name, "result"), containers_of(type_spec)))


def _unstacked(type_spec: Type, lanes: int, name: str, path: str) -> Type:
    if isinstance(type_spec, TensorType) and type_spec.shape and type_spec.shape[0] == lanes:
        return TensorType(type_spec.dtype.type, type_spec.shape[1:])
    if isinstance(type_spec, StructType):
        members = enumerate(fields_of(type_spec))
        return struct_of((n, _unstacked(t, lanes, name, join_path(path, n, i))) for i, (n, t) in members)
    raise InvalidComputationError(
        f"Expected the vectorized function {name!r} to return an array with {lanes} rows for {lanes} clients, found "
        f"{type_spec} as {path}; let its first axis be that of the arguments, or remove vectorized=True"
    )


# Advice that does not apply to a group, whose number of rows is fixed.
_VARYING = re.compile(r"; declare [^;]* if the number of rows varies")


class _Group(PythonLeaf):
    """A vectorized function as a leaf that is called once for all lanes."""

    def __init__(
        self, function: Callable[..., object], name: str, parameter: Type | None, result: Type, lanes: int
    ) -> None:
        super().__init__(function, name, parameter, result)
        self.result_advice = (
            "a vectorized function returns arrays whose first axis is that of its arguments, a row for each of the "
            f"{lanes} clients of a group"
        )
        self.evaluate = with_one_blas_thread(self.evaluate)  # at the server, too

    def _placed(self, error: FedstackError) -> FedstackError:
        error.args = (_VARYING.sub("", str(error)), *error.args[1:])
        return super()._placed(error)


class VectorizedLeaf(BoundOperation):
    """A leaf that runs a function for a group of clients at a time.

    Args:
      group: The function as a leaf that processes all lanes; for its types, see `stacked`.
      parameter: The type of the argument of one client.
      result: The type of the result of one client.
      lanes: The number of lanes.
      alone: The function as a leaf for calls on the server; by default these run in the first lane.
    """

    prefers_columns = True

    def __init__(self, group: Leaf, parameter: Type, result: Type, lanes: int, alone: Leaf | None = None) -> None:
        self.name = group.name
        self.parameter = self._parameter = parameter
        self.result = result
        self.lanes = lanes
        self._group = group
        self._alone = alone

    def call(self, argument: object, client: int | None = None) -> object:
        if client is None and self._alone is not None:
            return self._alone.call(argument)
        lane = (client or 0) % self.lanes
        found = self._group.call(self._arguments(ConstantColumn(argument, 1), lane, {}), client)
        return copied_row(_rows_of(found, self.result), lane, self.result)

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        assert argument is not None, "a vectorized function has parameters"
        done = bytearray()
        with ColumnCall(first_client, done):
            return self._in_groups(argument, first_client, done, self._called)

    def call_elements(self, argument: Column, first: int, client: int | None) -> Column:
        def call(elements: Column, index: int, constants: dict[int, NDArray[Any]]) -> object:
            return self._group.call(self._arguments(elements, index % self.lanes, constants), client)

        return self._in_groups(argument, first, bytearray(), call)

    def _in_groups(self, argument: Column, first: int, done: bytearray, call: _CallGroup) -> Column:
        """Calls the function for groups of clients, or of elements of a sequence, that begin at multiples of the lanes.

        Args:
          argument: The arguments.
          first: The index of the first client or element.
          done: Receives a byte for each one that is done.
          call: Calls the function for some of a group, given the index of the first one.
        """
        results: list[Column] = []
        constants: dict[int, NDArray[Any]] = {}
        while len(done) < len(argument):
            start = first + len(done)
            lane = start % self.lanes
            count = min(self.lanes - lane, len(argument) - len(done))
            found = call(argument.slice(len(done), len(done) + count), start, constants)
            columns = [rows[lane : lane + count] for rows in _rows_of(found, self.result)]
            results.append(stacked_column(iter(columns), self.result, count))
            done += bytes(count)
        return concatenate(results, self.result) if results else empty_column(self.result)

    def _called(self, clients: Column, first_client: int, constants: dict[int, NDArray[Any]]) -> object:
        """Calls the function for some clients of a group. An error names the first client that alone has an error."""
        lane = first_client % self.lanes
        if len(clients) == 1:
            return self._group.call(self._arguments(clients, lane, constants), first_client)
        try:
            return self._group.call(self._arguments(clients, lane, constants))
        except FedstackError as error:
            for index in range(len(clients)):
                arguments = self._arguments(clients.slice(index, index + 1), lane + index, constants)
                self._group.call(arguments, first_client + index)
            last = first_client + len(clients) - 1
            where = (
                f"for clients {first_client} to {last} together, and for none of them alone; a row of the result may "
                "depend only on the same row of the arguments"
            )
            raise with_place(error, where) from error.__cause__

    def _arguments(self, clients: Column, lane: int, constants: dict[int, NDArray[Any]]) -> object:
        """Returns the payload for all lanes.

        Args:
          clients: The arguments of the clients from a lane on.
          lane: The lane.
          constants: The rows of values that are the same for all clients, by the identity of the value.
        """
        rows: list[NDArray[Any]] = []
        for column, tensor in column_leaves(clients, self._parameter):
            if isinstance(column, ConstantColumn):
                found = constants.get(id(column.value))
                if found is None:
                    found = self._empty(tensor)
                    found[:] = cast("NDArray[Any]", column.value)
                    constants[id(column.value)] = read_only(found)
                rows.append(found)
            else:
                rows.append(self._filled(column, tensor, lane))
        return unflatten(iter(rows), self._parameter)

    def _filled(self, column: Column, tensor: TensorType, lane: int) -> NDArray[Any]:
        """Returns the values of one tensor in all lanes, always as an array of the same layout."""
        if isinstance(column, RowsColumn) and len(column) == self.lanes and is_plain(column.values):
            return column.values
        rows = self._empty(tensor)
        stop = lane + len(column)
        if isinstance(column, RowsColumn):
            rows[lane:stop] = column.values
        else:
            np.stack(cast("list[NDArray[Any]]", column.items()), out=rows[lane:stop])
        rows[:lane], rows[stop:] = rows[lane], rows[lane]
        return read_only(rows)

    def _empty(self, tensor: TensorType) -> NDArray[Any]:
        return np.empty(cast("tuple[int, ...]", (self.lanes, *(tensor.shape or ()))), tensor.dtype)

    def __repr__(self) -> str:
        return f"<VectorizedLeaf {self.name}, {self.lanes} lanes>"


def python_leaf(
    function: Callable[..., object], name: str, parameter: Type | None, result: Type, *, vectorized: bool
) -> BoundOperation:
    """Returns the leaf of a Python function; see `PythonFunction` for the arguments.

    Raises:
      InvalidComputationError: If the function cannot be vectorized.
    """
    if not vectorized:
        return PythonLeaf(function, name, parameter, result)
    check_vectorized(name, parameter, result)
    parameter = cast(Type, parameter)
    lanes = lanes_of(parameter, result)
    group = _Group(function, name, stacked(parameter, lanes), stacked(result, lanes), lanes)
    return VectorizedLeaf(group, parameter, result, lanes)


def column_leaves(column: Column, type_spec: Type) -> Iterator[tuple[Column, TensorType]]:
    """Yields the column and the type of each tensor of a column."""
    if isinstance(type_spec, TensorType):
        yield column, type_spec
        return
    for index, (_, member) in enumerate(fields_of(cast(StructType, type_spec))):
        yield from column_leaves(column.field(index), member)


def _rows_of(payload: object, type_spec: Type) -> list[NDArray[Any]]:
    """Returns the tensors of a result. Their rows have the layout that they would have in another process."""
    arrays = cast("list[NDArray[Any]]", flatten(payload, type_spec))
    return [array if is_plain(array) else read_only(np.array(array, order="C")) for array in arrays]


def copied_row(stacks: Sequence[NDArray[Any]], row: int, result: Type) -> object:
    """Returns the result of one client, given stacked results. A view would keep the results of all in memory."""
    values = [np.array(rows[row]) for rows in stacks]
    return unflatten(iter([value[()] if value.ndim == 0 else read_only(value) for value in values]), result)


def stacked_column(leaves: Iterator[NDArray[Any]], type_spec: Type, size: int) -> Column:
    """Returns the column of a type, given the stacked values of its tensors."""
    if isinstance(type_spec, StructType):
        return StructColumn(tuple([stacked_column(leaves, member, size) for _, member in fields_of(type_spec)]), size)
    return (ScalarColumn if is_scalar(cast(TensorType, type_spec)) else RowsColumn)(next(leaves))
