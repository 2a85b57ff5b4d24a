"""Finds out whether an array has one owner. CPython's reference counts tell, as long as it has its global lock.

A payload array is a read-only view; the array under it is its *buffer*. Four places ask who else can reach a buffer:

| who asks | why | the buffer | refers to the buffer | refers to the payload |
| --- | --- | --- | --- | --- |
| `snapshots.py` | may a result change after the function has returned it? | any | the payload | anyone |
| `take_buffer` | a fold wants to write into a result | whole, large | the payload, not even weakly | one list |
| `containers.py` | the user may keep the result of a computation | whole | the payload | anyone: it is not used again |
| `phase_results.py` | a fold wants to write into what has been received | whole | not counted: fresh memory | anyone |

A buffer is *whole* if the payload shows all of it, in its order and dtype, and if it has memory of its own that can be
written to (`whole_buffer`). Memory of another object (a file, bytes, a tensor) may be seen through that object.
Where references cannot be counted nothing has one owner: arrays are copied.
"""

import sys
import weakref
from typing import cast

import numpy as np

# Below this size a fresh buffer is cheaper than to find out whether there is one to take.
_WORTH_TAKING = 16 * 1024


def _references_of_one_owner() -> tuple[int, int]:
    """Counts the references to a payload that only a list has, and to the buffer under it, which only that has."""
    if not hasattr(sys, "getrefcount") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0, 0
    payloads = [np.empty(1).view()]
    buffer = cast(np.ndarray, payloads[0].base)
    return sys.getrefcount(payloads[0]), sys.getrefcount(buffer)


# What `sys.getrefcount` returns for a buffer in a local variable, if nothing but its payload refers to it. Who compares
# does it in place: a function that did it would count references of its own, and take as long as all the rest.
_PAYLOAD_OF_ONE, BUFFER_OF_ONE = _references_of_one_owner()


def whole_buffer(payload: np.ndarray) -> np.ndarray | None:
    """Returns the array that a payload shows all of, with memory of its own that can be written to; `None` if none."""
    buffer: object = payload.base
    # A reversed or transposed view may have the shape of its base, and then other strides.
    if type(buffer) is not np.ndarray or buffer.shape != payload.shape or buffer.strides != payload.strides:
        return None
    if buffer.base is not None or buffer.dtype != payload.dtype:
        return None
    flags = buffer.flags
    return buffer if flags.owndata and flags.writeable else None


def take_buffer(payloads: list[object], index: int) -> np.ndarray | None:
    """Takes the array that a leaf function returned out of a list of payloads, if nobody else can refer to it.

    Args:
      payloads: A list that nobody else reads any more. Where the array is taken, `None` stays behind.
      index: Which of them.

    Returns:
      The array, to be written into and kept; `None` if anybody might notice.
    """
    payload = payloads[index]
    if type(payload) is not np.ndarray or payload.nbytes < _WORTH_TAKING or payload.flags.writeable:
        return None
    buffer = whole_buffer(payload)
    if buffer is None or weakref.getweakrefcount(buffer) or weakref.getweakrefcount(payload):
        return None
    del payload  # which refers to it, too
    if sys.getrefcount(payloads[index]) != _PAYLOAD_OF_ONE or sys.getrefcount(buffer) != BUFFER_OF_ONE:
        return None
    payloads[index] = None
    return buffer
