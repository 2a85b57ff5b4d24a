"""Draws ids that nothing else has: at random, and in simulations as a seed has it."""

import contextlib
import random
import secrets
import threading
from collections.abc import Generator

_BYTES = 16
_drawing = threading.local()


def draw_id(size: int = _BYTES) -> bytes:
    """Returns bytes that nobody has drawn before, and nobody guesses."""
    chance: random.Random | None = getattr(_drawing, "chance", None)
    return secrets.token_bytes(size) if chance is None else chance.randbytes(size)


@contextlib.contextmanager
def ids_from(chance: random.Random) -> Generator[None, None, None]:
    """Lets the ids that this thread draws follow from a seed for the duration of the block: those of a simulation."""
    before = getattr(_drawing, "chance", None)
    _drawing.chance = chance
    try:
        yield
    finally:
        _drawing.chance = before
