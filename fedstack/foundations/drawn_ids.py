"""Draws unique ids: at random, or in simulations from a seed."""

import contextlib
import random
import secrets
import threading
from collections.abc import Generator

_BYTES = 16
_drawing = threading.local()


def draw_id(size: int = _BYTES) -> bytes:
    """Returns unique, unpredictable bytes."""
    chance: random.Random | None = getattr(_drawing, "chance", None)
    return secrets.token_bytes(size) if chance is None else chance.randbytes(size)


@contextlib.contextmanager
def ids_from(chance: random.Random) -> Generator[None, None, None]:
    """Makes this thread draw its ids from a seeded generator within the block, for a simulation."""
    before = getattr(_drawing, "chance", None)
    _drawing.chance = chance
    try:
        yield
    finally:
        _drawing.chance = before
