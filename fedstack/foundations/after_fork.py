"""Renews in forked children what other threads of the parent may have been in the midst of.

A child has its parent's memory, and of its threads only the one that forked. A lock that another thread held is held
for ever there, and what it guards may be half changed. So whatever outlives an invocation and has a lock registers
here. What belongs to an invocation does not: its threads are gone, and nobody in the child goes on with it.
"""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that outlives an invocation, and that several threads change."""

    def renew(self) -> None:
        """Makes new locks, and drops what threads that are gone may have left half changed. It must not raise.

        Called in a forked child while there is one thread.
        """
        ...


_registered: "weakref.WeakSet[Renewable]" = weakref.WeakSet()
_process = os.getpid()


def renew_after_fork(owner: Renewable) -> None:
    """Lets something be renewed in each forked child, for as long as anybody refers to it."""
    _registered.add(owner)


def is_renewed() -> bool:
    """Tells whether what may have come from a parent can be used.

    It cannot in destructors of what only the other threads referred to: Python runs them before it calls anybody.
    """
    return _process == os.getpid()


def _renew_all() -> None:
    global _process
    for owner in list(_registered):
        owner.renew()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
