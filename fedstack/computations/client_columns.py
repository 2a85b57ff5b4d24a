"""Makes arrays of what users give as columns, so that no value of theirs is changed without a word."""

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import TypeMismatchError

_SEQUENCES = (list, tuple, deque)


def check_unmasked(value: object, path: str) -> None:
    """Refuses masked arrays, also in lists: plain arrays would show what the masks hide.

    Args:
      value: What shall become an array.
      path: Where it stands, for messages.

    Raises:
      TypeMismatchError: If there is a masked array.
    """
    if _has_mask(value):
        raise TypeMismatchError(
            f"Expected an array without a mask, found a masked array; at {path}; say what stands for the masked "
            "elements: value.filled(…), or drop the rows yourself"
        )


def column_array(value: Any, path: str) -> NDArray[Any]:
    """Returns `value` as an array.

    Args:
      value: An array, or what NumPy makes one.
      path: Where it stands, for messages.

    Raises:
      TypeMismatchError: If there is a masked array.
    """
    check_unmasked(value, path)
    return np.asarray(value)


def _has_mask(value: object) -> bool:
    if isinstance(value, np.ma.MaskedArray):
        return True
    if not isinstance(value, _SEQUENCES):
        return False
    # The kinds are few, the elements many: most lists need no look at each element.
    items = cast("Sequence[object]", value)
    suspect = any(issubclass(kind, (np.ma.MaskedArray, *_SEQUENCES)) for kind in set(map(type, items)))
    return suspect and any(map(_has_mask, items))
