"""Keeps what is made of an object of a plan with that object: it is made once, and ends with it."""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

# What has been made of an object, by the function that made it. The signatures of these say what it is.
Made: TypeAlias = dict[Callable[[Any], object], Any]


class Keeper(Protocol):
    """An object of a plan; a plan is kept as long as it is in use, and what is made of it with it."""

    @property
    def made(self) -> Made:
        """What `made_once` keeps here."""
        ...


_K = TypeVar("_K", bound=Keeper)
_T = TypeVar("_T")


def made_once(make: Callable[[_K], _T]) -> Callable[[_K], _T]:
    """Decorates a function of an object of a plan: what it returns is kept with the object.

    Of two threads that need it at the same time both may make it; all get the one that was kept first. An error is not
    kept.
    """

    @functools.wraps(make)
    def find(keeper: _K) -> _T:
        made = keeper.made
        try:
            return made[make]
        except KeyError:
            pass
        return made.setdefault(make, make(keeper))

    return find
