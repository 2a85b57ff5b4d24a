"""Renews, in a forked child, the state that other threads of the parent may have been changing.

A child has its parent's memory, but only the thread that forked. A lock that another thread held stays locked forever,
and what it guards may be half changed. So every object that has a lock and outlives an invocation registers here. The
state of an invocation does not: its threads are gone, and the child does not continue it.
"""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object that outlives an invocation, and that several threads change."""

    def renew(self) -> None:
        """Replaces the locks, and drops state that a lost thread may have left half changed. It must not raise.

        Called in a forked child while it has one thread.
        """
        ...


_registered: "weakref.WeakSet[Renewable]" = weakref.WeakSet()
_process = os.getpid()


def renew_after_fork(owner: Renewable) -> None:
    """Has an object renewed in each forked child, as long as it is referenced."""
    _registered.add(owner)


def is_renewed() -> bool:
    """Returns whether state that may come from a parent process is usable.

    It is not in the destructors of objects that only lost threads referenced: Python runs them before fork handlers.
    """
    return _process == os.getpid()


def _renew_all() -> None:
    global _process
    for owner in list(_registered):
        owner.renew()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
