"""Draws unique ids and random pauses: at random or, in simulations, from seeded generators.

The global generator of `random` is left to users, whose seeds and draws have nothing to do with retries.
"""

import contextlib
import os
import random
import secrets
import threading
from collections.abc import Callable, Generator

_BYTES = 16
_drawing = threading.local()
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def draw_id(size: int = _BYTES) -> bytes:
    """Returns `size` random bytes to use as a unique id; unpredictable except within `draws_from`."""
    chances = _chances()
    return secrets.token_bytes(size) if chances is None else chances("id").randbytes(size)


def draw_seconds(most: float, what: str) -> float:
    """Returns a random time from 0 to `most`, in seconds.

    Args:
      most: The longest time, in seconds.
      what: What the time is for. Times for different things are drawn independently of each other.
    """
    chances = _chances()
    return (_random if chances is None else chances(what)).uniform(0.0, most)


def _chances() -> Callable[[str], random.Random] | None:
    return getattr(_drawing, "chances", None)


@contextlib.contextmanager
def draws_from(chances: Callable[[str], random.Random]) -> Generator[None, None, None]:
    """Draws on this thread from seeded generators in a `with` block, for simulations.

    Args:
      chances: Returns the generator for what is drawn.
    """
    before = _chances()
    _drawing.chances = chances
    try:
        yield
    finally:
        _drawing.chances = before
