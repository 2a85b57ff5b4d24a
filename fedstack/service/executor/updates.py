"""Puts other values in place of some that sessions hold, one after the other: what variables are made of."""

from collections.abc import Callable

import numpy as np

from fedstack.computations.types.language import Type
from fedstack.computations.types.type_sizes import check_assignable, type_text
from fedstack.computations.types.type_structure import flatten, tensor_leaves, unflatten
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.off_loop import sized
from fedstack.executors.worker.received import Received
from fedstack.proto.extensions_pb2 import UpdateRequest
from fedstack.service.executor.creations import Creations
from fedstack.service.executor.sessions import held_values
from fedstack.service.executor.sessions.session import Session

_OPERATIONS = {UpdateRequest.ADD: np.add, UpdateRequest.SUBTRACT: np.subtract}


class Updates:
    """Updates values of sessions.

    Args:
      creations: Reads the values that come.
    """

    def __init__(self, creations: Creations) -> None:
        self._creations = creations

    async def run(self, session: Session, received: Received[UpdateRequest]) -> None:
        """Puts another value in place of one.

        Raises:
          InvalidValueError: If that was computed.
          TypeMismatchError: If the other one has another type, or is to be added and is no number.
        """
        request = received.message
        payload, type_spec, size = await self._creations.value(session, request.value, received)
        await received.end()
        value_id = request.value_ref.id
        async with session.updating:
            known = held_values.known_payload(session.find(value_id))
            if known is None:
                raise InvalidValueError("Expected a value that was sent, found one that is computed; it cannot change")
            before, declared = known
            check_assignable(declared, type_spec, "value")
            operation = _OPERATIONS.get(request.how)
            if operation is not None:
                payload = await sized(size, lambda: _combined(operation, before, payload, declared))
            session.replace(value_id, await held_values.create_known(session.executor, payload, declared))


def _combined(operation: Callable[..., object], before: object, change: object, type_spec: Type) -> object:
    for path, tensor in tensor_leaves(type_spec):
        if tensor.dtype.kind not in "iufc" and tensor.dtype.name != "bfloat16":
            raise TypeMismatchError(f"Expected numbers to add, found {type_text(tensor)}; at value{path}")
    pairs = zip(flatten(before, type_spec), flatten(change, type_spec), tensor_leaves(type_spec))
    with np.errstate(all="ignore"):
        made = [_applied(operation, old, new, tensor.dtype) for old, new, (_, tensor) in pairs]
    return unflatten(iter(made), type_spec)


def _applied(operation: Callable[..., object], old: object, new: object, dtype: np.dtype) -> object:
    value = np.asarray(operation(np.asarray(old), np.asarray(new))).astype(dtype, copy=False)
    return value[()] if value.ndim == 0 else read_only(value)
