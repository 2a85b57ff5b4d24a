"""Generates unique ids, either at random or, for simulations, from a seeded generator."""

import contextlib
import random
import secrets
import threading
from collections.abc import Generator

_BYTES = 16
_drawing = threading.local()


def draw_id(size: int = _BYTES) -> bytes:
    """Returns `size` random bytes to use as a unique id; unpredictable except within `ids_from`."""
    chance: random.Random | None = getattr(_drawing, "chance", None)
    return secrets.token_bytes(size) if chance is None else chance.randbytes(size)


@contextlib.contextmanager
def ids_from(chance: random.Random) -> Generator[None, None, None]:
    """Makes `draw_id` on this thread draw from the generator `chance` in a `with` block, for simulations."""
    before = getattr(_drawing, "chance", None)
    _drawing.chance = chance
    try:
        yield
    finally:
        _drawing.chance = before
