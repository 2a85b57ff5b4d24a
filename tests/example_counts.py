"""How many examples Hypothesis tries where a test names a number."""

from hypothesis import settings

_MOST = 100  # those of a test that names none


def examples(number: int) -> int:
    """Returns the number, or what the profile has for all tests if that is few: every Python treats values alike."""
    most = settings().max_examples
    return number if most >= _MOST else min(number, most)
