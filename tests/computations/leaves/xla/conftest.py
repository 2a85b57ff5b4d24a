"""What the tests of JAX functions have in common."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_compiled_code_is_left() -> Iterator[None]:
    """Lets JAX forget what it has compiled, since hundreds of functions take gigabytes."""
    yield
    jax.clear_caches()
