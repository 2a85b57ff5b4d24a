"""Runs the language's generic operators: plus, multiply and divide on structs of tensors, element by element."""

from typing import cast

import numpy as np

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.plan.intrinsics import quotient_type
from fedstack.computations.plan.program import IntrinsicSource
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.types.type_structure import flatten, tensor_leaves, unflatten
from fedstack.computations.values.columns import Column, ScalarColumn
from fedstack.computations.values.tensor_values import read_only

_OPERATIONS: dict[str, np.ufunc] = {
    "generic_plus": np.add,
    "generic_multiply": np.multiply,
    "generic_divide": np.true_divide,
}


class Arithmetic(BoundOperation):
    """A generic operator. Integers keep their dtype and wrap; a division of integers gives float64."""

    def __init__(self, source: IntrinsicSource) -> None:
        self.name = source.uri
        self.operand: Type = source.arguments[0]
        self.result: Type = source.type
        self._operation = _OPERATIONS[source.uri]
        divides = source.uri == "generic_divide"
        types = quotient_type(self.operand) if divides else self.operand
        self._dtypes = [tensor.dtype for _, tensor in tensor_leaves(types)]

    def call(self, argument: object, client: int | None = None) -> object:
        left, right = cast("tuple[object, object]", argument)
        pairs = zip(flatten(left, self.operand), flatten(right, self.operand), self._dtypes)
        with np.errstate(all="ignore"):
            return unflatten(iter([self._apply(a, b, dtype) for a, b, dtype in pairs]), self.operand)

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        if isinstance(self.operand, TensorType) and argument is not None:
            left, right = argument.field(0), argument.field(1)
            if isinstance(left, ScalarColumn) and isinstance(right, ScalarColumn):
                with np.errstate(all="ignore"):
                    return ScalarColumn(self._operation(left.values, right.values).astype(self._dtypes[0], copy=False))
        return super().call_column(argument, first_client, size)

    def _apply(self, left: object, right: object, dtype: np.dtype) -> object:
        value = np.asarray(self._operation(np.asarray(left), np.asarray(right))).astype(dtype, copy=False)
        return value[()] if value.ndim == 0 else read_only(value)


def arithmetic_for(source: IntrinsicSource) -> BoundOperation | None:
    """Returns the operation for a generic operator, or `None` for any other intrinsic."""
    return Arithmetic(source) if source.uri in _OPERATIONS else None
