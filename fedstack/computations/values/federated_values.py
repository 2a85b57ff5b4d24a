"""Builds the payloads of federated values, which are columns with the values of all clients and are checked in bulk.

A list of Python floats becomes one NumPy array in a few passes at C speed. Only values that fail the quick check are
checked individually, so that the error message can name the client.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import (
    FederatedType,
    PlacementLiteral,
    SequenceType,
    StructType,
    TensorType,
    Type,
)
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import (
    fields_of,
    is_client_valued,
    is_scalar,
    is_string,
    join_path,
    shape_fits,
)
from fedstack.computations.values.column_sequence import ColumnSequence, SequenceColumn, packed_elements, rows_of
from fedstack.computations.values.columns import (
    Column,
    ListColumn,
    Payload,
    RowsColumn,
    ScalarColumn,
    StructColumn,
    column_from_payloads,
)
from fedstack.computations.values.deferred_column import Where, deferred, refusal
from fedstack.computations.values.records import Record, split_struct
from fedstack.computations.values.tensor_values import (
    all_read_only,
    is_plain,
    kind_of_dtype,
    mismatch,
    normalize_tensor,
    quiet_context,
    read_only,
)
from fedstack.computations.values.values import normalize, normalize_sequence
from fedstack.errors import CardinalityError, InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.value_text import describe, is_data_frame

_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


def normalize_argument(value: object, type_spec: Type, path: str = "arg") -> Payload:
    """Returns the payload of a value of any type, including federated types. Lists become sequences over columns.

    Args:
      value: See `normalize`.
      type_spec: The expected type.
      path: The path of the value, for error messages.

    Raises:
      TypeMismatchError: If the value does not match the type. The message contains the path and the client.
    """
    if isinstance(type_spec, TensorType):  # checked first, since small values consist of tensors
        return normalize_tensor(value, type_spec, path)
    if isinstance(type_spec, FederatedType):
        if is_client_valued(type_spec):
            return _normalize_clients(value, type_spec, path)
        return normalize_argument(value, type_spec.member, path)
    if isinstance(type_spec, StructType):
        members = split_struct(value, type_spec, path)
        return tuple(
            normalize_argument(member, member_type, join_path(path, name, index))
            for index, (member, (name, member_type)) in enumerate(zip(members, fields_of(type_spec)))
        )
    if isinstance(type_spec, SequenceType):
        return _sequence(value, type_spec, path)
    return normalize(value, type_spec, path)


def count_clients(payload: Payload, type_spec: Type, path: str = "arg") -> int | None:
    """Returns the number of clients for which a payload has values, or `None` if it has no clients' values.

    Raises:
      CardinalityError: If two parts of the payload have different numbers of clients.
    """
    counts = list(_counts(payload, type_spec, path))
    for (first_path, first), (other_path, other) in itertools.pairwise(counts):
        if first != other:
            raise CardinalityError(
                f"Expected the same number of clients in all arguments, found {first} at {first_path} and {other} at "
                f"{other_path}; pass one value per client in every federated argument"
            )
    return counts[0][1] if counts else None


def check_clients(payload: Payload, type_spec: Type, clients: int | None) -> None:
    """Checks that a payload has one value per client of an executor.

    Args:
      payload: The payload.
      type_spec: The type of the payload.
      clients: The executor's number of clients; `None` if the number is unknown.

    Raises:
      CardinalityError: If the payload has values for a different number of clients, or two parts of the payload have
        different numbers of clients.
    """
    if isinstance(type_spec, TensorType):
        return
    found = count_clients(payload, type_spec, "value")
    if found is not None and clients is not None and found != clients:
        raise wrong_number_of_clients(clients, found)


def wrong_number_of_clients(clients: int, found: int) -> CardinalityError:
    """Returns the error for values whose number differs from the executor's number of clients."""
    return CardinalityError(
        f"Expected one value for each of the {counted(clients, 'client')} of this executor, found {found}; create the "
        "executor for the number of clients that have values (`create_executor`, `set_cardinalities`)"
    )


def _counts(payload: object, type_spec: Type, path: str) -> Iterable[tuple[str, int]]:
    if isinstance(payload, Column) and is_client_valued(type_spec):
        yield path, len(payload)
    elif isinstance(type_spec, StructType):
        members = cast("tuple[object, ...]", payload)
        for index, (member, (name, member_type)) in enumerate(zip(members, fields_of(type_spec))):
            yield from _counts(member, member_type, join_path(path, name, index))


def _normalize_clients(value: object, type_spec: FederatedType, path: str) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(type_spec.member, TensorType) and _has_rows(value):
        return _rows_column(np.asarray(value), type_spec.member, path)
    if not _is_list(value) or hasattr(value, "_asdict"):
        wanted = f"a list or tuple with one value per client, for {type_spec}"
        found, advice = refusal(type(value)) or (describe(value), _client_hint(value, type_spec.member))
        mismatch(wanted, found, path, advice)
    return column_from_values(value, type_spec.member, lambda client: f"{path}[client {client}]", may_be_elsewhere=True)


def _has_rows(value: object) -> TypeGuard[NDArray[Any]]:
    """Returns whether a value is an array with an axis for clients, and its rows are what they seem to be."""
    return isinstance(value, np.ndarray) and value.ndim > 0 and not isinstance(value, (np.ma.MaskedArray, np.matrix))


def _rows_column(rows: NDArray[Any], member: TensorType, path: str) -> Column:
    """Returns the column of clients whose values are the rows of an array."""
    if rows.dtype == member.dtype and not is_string(member) and shape_fits(rows.shape[1:], member.shape):
        plain = rows if is_plain(rows) else np.array(rows, order="C")
        return (ScalarColumn if is_scalar(member) else RowsColumn)(read_only(plain))
    if member.shape is not None and shape_fits(rows.shape, member.shape):
        wanted = f"an array whose first axis is that of the clients, for clients' {type_text(member)}"
        mismatch(wanted, describe(rows), path, "this is the value of one client: pass it in a list, [value]")
    if not len(rows) and not (is_string(member) and rows.ndim == 1):
        mismatch(f"rows of {type_text(member)}", f"no rows, of {rows.dtype}{list(rows.shape[1:])}", path)
    return column_from_values(list(rows), member, lambda client: f"{path}[client {client}]")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple)) and not isinstance(value, Record)


def _client_hint(value: object, member: Type) -> str:
    if isinstance(value, Mapping):
        names = {name for name, _ in fields_of(member)} if isinstance(member, StructType) else set[object]()
        if names and names <= cast("Mapping[object, object]", value).keys():
            return "this is the value of one client: pass it in a list, [value]"
        return "pass list(mapping.values()), in the desired order of clients"
    if is_data_frame(value):
        return "pass list(fedstack.by_client(df, id).values()), where id is the column with the client's id"
    if hasattr(value, "__array__"):
        return _array_hint(value, member)
    return "put the clients' values into a list"


def _array_hint(value: object, member: Type) -> str:
    if isinstance(value, np.ma.MaskedArray):
        return "choose a value for masked elements: value.filled(...)"
    if not isinstance(member, TensorType):
        return "pass a list; only numbers and arrays of clients can be the rows of an array"
    if not np.ndim(cast("NDArray[Any]", value)):
        return "put the clients' values into a list, or into an array whose first axis is that of the clients"
    return "pass np.asarray(value) if each row is the value of one client"


def column_from_values(
    values: Sequence[object],
    member: Type,
    where: Where,
    *,
    may_be_elsewhere: bool = False,
) -> Column:
    """Returns a column of Python values.

    Args:
      values: One value per client, in the order of the clients.
      member: The expected type of each value.
      where: Returns the path of the value at an index, for error messages.
      may_be_elsewhere: Whether values or their members may be in another store. If so, the values are read when the
        column is used.

    Raises:
      TypeMismatchError: If a value does not match the type. The message names the client.
    """
    kinds = set(map(type, values))
    if may_be_elsewhere and (found := deferred(values, kinds, member, where, column_from_values)) is not None:
        return found
    if isinstance(member, TensorType):
        if is_string(member):
            return ListColumn([normalize_tensor(value, member, where(i)) for i, value in enumerate(values)])
        if is_scalar(member):
            return _scalar_column(values, kinds, member, where)
        return _array_column(values, kinds, member, where)
    if isinstance(member, StructType):
        return _struct_column(values, kinds, member, where, may_be_elsewhere)
    if isinstance(member, SequenceType):
        return _sequence_column(values, kinds, member, where)
    return ListColumn([normalize(value, member, where(i)) for i, value in enumerate(values)])


def _scalar_column(values: Sequence[object], kinds: set[type[object]], member: TensorType, where: Where) -> Column:
    dtype = member.dtype
    if kinds == {dtype.type}:
        return ScalarColumn(np.array(values, dtype))
    if kinds == {float} and kind_of_dtype(dtype) == "f":
        wide = np.array(values, np.float64)
        narrow = quiet_context().run(wide.astype, dtype)
        if np.logical_and.reduce(np.isfinite(narrow)):  # faster than `all()`, which calls Python code
            return ScalarColumn(narrow)
    elif kinds == {int} and dtype.kind in "iu":
        info = np.iinfo(dtype)
        integers = cast("Sequence[int]", values)
        if info.min <= min(integers) and max(integers) <= info.max:
            return ScalarColumn(np.array(values, dtype))
    elif kinds == {bool} and dtype.kind == "b":
        return ScalarColumn(np.array(values, dtype))
    return column_from_payloads([normalize_tensor(value, member, where(i)) for i, value in enumerate(values)], member)


def _array_column(values: Sequence[object], kinds: set[type[object]], member: TensorType, where: Where) -> Column:
    dtype, shape = member.dtype, member.shape
    if kinds == {np.ndarray}:
        arrays = cast("Sequence[np.ndarray]", values)
        # Usually the values are arrays of exactly this dtype with a matching shape.
        if set(map(_dtype_of, arrays)) == {dtype} and all(shape_fits(s, shape) for s in set(map(_shape_of, arrays))):
            return ListColumn(all_read_only(arrays), list_is_own=True)
    return ListColumn([normalize_tensor(value, member, where(i)) for i, value in enumerate(values)], list_is_own=True)


def _struct_column(
    values: Sequence[object],
    kinds: set[type[object]],
    member: StructType,
    where: Where,
    may_be_elsewhere: bool,
) -> Column:
    fields = fields_of(member)
    columns = _split_alike(values, kinds, member)
    if columns is None:
        rows = [split_struct(value, member, where(i)) for i, value in enumerate(values)]
        columns = list(zip(*rows)) if rows else [()] * len(fields)

    def field_column(index: int, name: str | None, field_type: Type) -> Column:
        place: Where = lambda i: join_path(where(i), name, index)  # noqa: E731
        return column_from_values(columns[index], field_type, place, may_be_elsewhere=may_be_elsewhere)

    return StructColumn(tuple(field_column(i, name, t) for i, (name, t) in enumerate(fields)), len(values))


def _split_alike(
    values: Sequence[object], kinds: set[type[object]], member: StructType
) -> Sequence[Sequence[object]] | None:
    """Splits structs of the same simple class into one list per field; returns `None` for other structs."""
    fields = fields_of(member)
    if len(kinds) != 1 or not fields:
        return None
    (kind,) = kinds
    names = [name for name, _ in fields]
    if kind in (tuple, list):
        rows = cast("Sequence[Sequence[object]]", values)
        return list(zip(*rows)) if set(map(len, rows)) == {len(fields)} else None
    if None in names:
        return None
    if issubclass(kind, dict):
        mappings = cast("Sequence[Mapping[str, object]]", values)
        if set(map(len, mappings)) != {len(fields)}:
            return None
        try:
            return [list(map(itemgetter(name), mappings)) for name in names]
        except KeyError:
            return None
    if issubclass(kind, Record) and list(kind.__names__) == names:
        return list(zip(*cast("Sequence[tuple[object, ...]]", values)))
    if getattr(kind, "_fields", None) == tuple(names):
        return [list(map(attrgetter(cast(str, name)), values)) for name in names]
    return None


def _sequence_column(values: Sequence[object], kinds: set[type[object]], member: SequenceType, where: Where) -> Column:
    """Returns a column of sequences. The elements of all clients are normalized together if all sequences are lists."""
    if not kinds <= {list}:
        return ListColumn([_sequence(value, member, where(i)) for i, value in enumerate(values)])
    lists = cast("Sequence[list[object]]", values)
    bounds = np.cumsum([0, *map(len, lists)])

    def where_element(position: int) -> str:
        client = int(np.searchsorted(bounds, position, side="right")) - 1
        return f"{where(client)}[{position - int(bounds[client])}]"

    elements = itertools.chain.from_iterable(lists)
    return SequenceColumn(_packed(elements, member.element, where_element), bounds)


def _sequence(value: object, sequence: SequenceType, path: str) -> Payload:
    if type(value) is list or type(value) is tuple:
        elements = cast("Sequence[object]", value)
        return ColumnSequence(_packed(elements, sequence.element, lambda i: f"{path}[{i}]"))
    return normalize_sequence(value, sequence, path)


def _packed(elements: Iterable[object], element: Type, where: Where) -> Column:
    def pack(some: Sequence[object], first: int) -> Column:
        if isinstance(element, TensorType) and (rows := rows_of(some)) is not None:
            if rows.values.dtype == element.dtype and shape_fits(rows.shape[1:], element.shape):
                return rows
        return column_from_values(some, element, lambda i: where(first + i))

    return packed_elements(elements, element, pack)


def checked_cardinalities(cardinalities: object, most: int | None = None) -> dict[PlacementLiteral, int]:
    """Checks numbers of participants by placement and returns them as a new dictionary of `int`s.

    Args:
      cardinalities: The value that the user passed.
      most: The maximum number of participants; `None` for no limit.

    Raises:
      CardinalityError: If the value is not a mapping from placements to numbers in range.
    """
    advice = "pass a mapping, for example {federated_language.CLIENTS: 10}"
    if not isinstance(cardinalities, Mapping):
        raise CardinalityError(
            f"Expected numbers of participants by placement, found {describe(cardinalities)}; {advice}"
        )
    found: dict[PlacementLiteral, int] = {}
    for placement, count in cast("Mapping[object, object]", cardinalities).items():
        if not isinstance(placement, PlacementLiteral):
            raise CardinalityError(f"Expected placements as keys, found the key {describe(placement)}; {advice}")
        try:
            found[placement] = check_whole_number(f"a number of {placement.uri}", count, 0, most)
        except InvalidValueError as error:
            raise CardinalityError(str(error)) from None
    return found
