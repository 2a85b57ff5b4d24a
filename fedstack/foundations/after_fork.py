"""Resets shared state in a forked child, because other threads of the parent may have been changing that state.

A child process inherits its parent's memory, but of its threads only the one that forked. A lock that another thread
held stays locked forever, and the state that the lock guards may be inconsistent. Therefore every object that has a
lock and outlives an invocation registers here. Objects that belong to one invocation do not register: their threads no
longer exist in the child, and the child does not continue the invocation.
"""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object that outlives an invocation and is modified by several threads."""

    def renew(self) -> None:
        """Replaces the locks, and drops state that a lost thread may have left inconsistent. Must not raise.

        This method is called in a forked child while the child has only one thread.
        """
        ...


_registered: "weakref.WeakSet[Renewable]" = weakref.WeakSet()
_process = os.getpid()


def renew_after_fork(owner: Renewable) -> None:
    """Registers an object, so that every forked child calls its `renew`. The object is referenced weakly."""
    _registered.add(owner)


def is_renewed() -> bool:
    """Returns whether this process has renewed the registered objects, so that inherited state is safe to use.

    The result is False in destructors that Python runs before the fork handlers, such as those of objects that only
    the lost threads referenced.
    """
    return _process == os.getpid()


def _renew_all() -> None:
    global _process
    for owner in list(_registered):
        owner.renew()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
