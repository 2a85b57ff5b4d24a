"""Finds the threads, asyncio tasks, file descriptors and executor values that a test leaks."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fedstack.executors.concurrency.thread_pool import ThreadPool

_POLL_SECONDS = 0.01
_DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class LeakCheck:
    """Compares the resources of the process at the start of a test with those at its end.

    The existing objects are frozen in the garbage collector until `finish()`. This makes the check cheap, because only
    new objects are examined. It also means that checks cannot be nested.
    """

    def __init__(self) -> None:
        self._threads = frozenset(threading.enumerate())
        self._pools = _pools()
        self._descriptors = _descriptors()
        gc.freeze()

    def finish(self, grace_seconds: float = 2.0) -> list[str]:
        """Returns a line for each resource that did not exist at the start.

        Args:
          grace_seconds: The maximum time to wait for the release of resources, in seconds.
        """
        try:
            return self._wait(time.monotonic() + grace_seconds)
        finally:
            gc.unfreeze()

    def _wait(self, deadline: float) -> list[str]:
        while True:
            found = self._new_things()
            if found:
                gc.collect()  # objects in unreachable reference cycles are not leaks
                found = self._new_things()
            if not found or time.monotonic() > deadline:
                return found
            ending = set(threading.enumerate()) - self._threads
            if ending:
                with contextlib.suppress(RuntimeError):  # a thread is listed just before it starts
                    ending.pop().join(_POLL_SECONDS)
            else:
                threading.Event().wait(_POLL_SECONDS)

    def _new_things(self) -> list[str]:
        # Idle threads of a pool that existed at the start are not leaks: the pool keeps them for its next work.
        idle = {thread for pool in self._pools for thread in tuple(pool.waiting)}
        new = [thread for thread in threading.enumerate() if thread not in self._threads and thread.ident not in idle]
        threads = [f"thread {thread.name!r}" for thread in new]
        # A descriptor number that was reused for another file counts as new. Files of installed packages (fonts, for
        # example) are ignored, because libraries open them once and keep them open.
        descriptors = sorted(_descriptors() - self._descriptors)
        installed = os.path.realpath(sys.prefix)  # the system reports paths with all links resolved
        files = [f"file descriptor {n} ({target})" for n, target in descriptors if not target.startswith(installed)]
        return [*threads, *files, *_new_objects()]


def _pools() -> "list[ThreadPool]":
    """Returns the open thread pools, without importing a module to find them."""
    module = sys.modules.get("fedstack.executors.concurrency.thread_pool")
    return [] if module is None else cast("list[ThreadPool]", module.open_pools())


def _descriptors() -> set[tuple[int, str]]:
    """Returns the open file descriptors and their targets, or an empty set if the system does not list them."""
    found: set[tuple[int, str]] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            # The descriptor of the listing itself is closed by now.
            with contextlib.suppress(OSError):
                found.add((int(name), os.readlink(f"{_DESCRIPTORS}/{name}")))
    return found


def _new_objects() -> list[str]:
    """Describes unfinished tasks and executor values, without importing a module to find them."""
    values = getattr(sys.modules.get("fedstack.executors.base.lazy_values"), "LazyValue", None)
    kinds = (asyncio.Task,) if values is None else (asyncio.Task, values)
    found: list[str] = []
    for thing in gc.get_objects():
        # `isinstance` would call `__class__` of proxy objects, which pretend to be of another type.
        if issubclass(type(thing), kinds):
            if not isinstance(thing, asyncio.Task):
                found.append(f"value {thing!r}")
            elif not thing.done():
                found.append(f"asyncio task {thing!r}")
    return found
