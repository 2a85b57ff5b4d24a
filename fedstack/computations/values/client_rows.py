"""Stands for the rows of a client that are wanted as columns or as batches, and are read where they are used."""

from collections.abc import Sequence
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_string
from fedstack.computations.values.column_sequence import BlockSequence, HasBlocks
from fedstack.computations.values.columns import Column, RowsColumn
from fedstack.computations.values.deferred_column import Elsewhere, Where, stands_for_blocks
from fedstack.computations.values.sequences import Batches, Batching
from fedstack.computations.values.tensor_values import mismatch


@stands_for_blocks
@attrs.frozen
class ClientRows(Elsewhere):
    """The rows of a client: a struct of arrays, as `fedstack.by_client` has them, or with a `batching` in batches.

    Attributes:
      source: What has the rows as elements.
      batching: How rows make batches.
    """

    source: HasBlocks
    batching: Batching | None = None

    def check(self, member: Type, place: str) -> None:
        found = self.source.element_type
        wanted = member if self.batching is None else member.element if isinstance(member, SequenceType) else None
        if wanted is None:
            mismatch(member, f"{self!r} of {found}", place, "declare a sequence of batches")
        names = _names(found)
        if isinstance(wanted, (StructType, TensorType)) and _names(wanted) != names:
            columns = ", ".join(map(str, names or ["no names"]))
            advice = "declare a struct of arrays with an open first dimension, with these names; or a sequence of rows"
            mismatch(member, f"{self!r} of rows with {columns}", place, advice)

    @classmethod
    def read(cls, found: Sequence["ClientRows"], member: Type, where: Where) -> Sequence[object]:
        return [rows._value(where(index)) for index, rows in enumerate(found)]

    def _value(self, place: str) -> object:
        element = self.source.element_type
        column = BlockSequence(self.source).held(element).column
        arrays = _arrays(column, element, place)
        return arrays if self.batching is None else Batches(arrays, len(column), self.batching)

    def __repr__(self) -> str:
        return repr(self.source) if self.batching is None else f"{self.source!r} in batches of {self.batching}"


def _names(element: Type) -> "set[str | None] | None":
    return {name for name, _ in fields_of(element)} if isinstance(element, StructType) else None


def _arrays(column: Column, element: Type, place: str) -> Any:
    """Returns rows as arrays, each with a first dimension that counts them, in the containers of an element."""
    if isinstance(element, StructType):
        fields = [(name, _arrays(column.field(i), t, place)) for i, (name, t) in enumerate(fields_of(element))]
        return dict(fields) if all(name for name, _ in fields) else tuple(member for _, member in fields)
    if isinstance(column, RowsColumn):
        return column.values
    items = cast("Sequence[NDArray[Any]]", column.items())
    shapes = list(dict.fromkeys(map(np.shape, items)))
    if len(shapes) > 1:
        advice = "pad them, or take rows one by one"
        mismatch("rows of one shape", f"{list(shapes[0])} and {list(shapes[1])}", place, advice)
    tensor = cast(TensorType, element)
    rows = np.empty((len(items), *(shapes or [()])[0]), np.object_ if is_string(tensor) else tensor.dtype)
    for index, item in enumerate(items):
        rows[index] = item
    rows.flags.writeable = False
    return rows
