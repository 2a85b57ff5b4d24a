"""Finds what a test leaves behind: threads, asyncio tasks, file descriptors, values of executors."""

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
    """Compares what there is at two moments.

    Until `finish()` the garbage collector leaves alone what there was in the beginning. That makes the check cheap, for
    only new objects have to be looked at, and it means that checks cannot be nested.
    """

    def __init__(self) -> None:
        self._threads = frozenset(threading.enumerate())
        self._pools = _pools()
        self._descriptors = _descriptors()
        gc.freeze()

    def finish(self, grace_seconds: float = 2.0) -> list[str]:
        """Returns a line for each thing that was not there in the beginning.

        Args:
          grace_seconds: How long to wait for what is about to go away.
        """
        try:
            return self._wait(time.monotonic() + grace_seconds)
        finally:
            gc.unfreeze()

    def _wait(self, deadline: float) -> list[str]:
        while True:
            found = self._new_things()
            if found:
                gc.collect()  # what is only in reference cycles is kept by nobody
                found = self._new_things()
            if not found or time.monotonic() > deadline:
                return found
            ending = set(threading.enumerate()) - self._threads
            if ending:
                with contextlib.suppress(RuntimeError):  # one that another thread is about to start is listed already
                    ending.pop().join(_POLL_SECONDS)
            else:
                threading.Event().wait(_POLL_SECONDS)

    def _new_things(self) -> list[str]:
        # A pool that was there in the beginning keeps threads for its next work: nobody need wait until they end.
        idle = {thread for pool in self._pools for thread in tuple(pool.waiting)}
        new = [thread for thread in threading.enumerate() if thread not in self._threads and thread.ident not in idle]
        threads = [f"thread {thread.name!r}" for thread in new]
        # A number that stands for another file than before is as new as one that was not there.
        # Files of installed packages, such as fonts, are what libraries open once and keep.
        descriptors = sorted(_descriptors() - self._descriptors)
        installed = os.path.realpath(sys.prefix)  # the system follows links in what it tells
        files = [f"file descriptor {n} ({target})" for n, target in descriptors if not target.startswith(installed)]
        return [*threads, *files, *_new_objects()]


def _pools() -> "list[ThreadPool]":
    """Returns the pools of threads that there are; no module is imported to find them."""
    module = sys.modules.get("fedstack.executors.concurrency.thread_pool")
    return [] if module is None else cast("list[ThreadPool]", module.open_pools())


def _descriptors() -> set[tuple[int, str]]:
    """Returns the open file descriptors with what they stand for; none where the system does not tell."""
    found: set[tuple[int, str]] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            # The descriptor of the listing itself is gone by now.
            with contextlib.suppress(OSError):
                found.add((int(name), os.readlink(f"{_DESCRIPTORS}/{name}")))
    return found


def _new_objects() -> list[str]:
    """Describes unfinished tasks and values of executors; no module is imported to find them."""
    values = getattr(sys.modules.get("fedstack.executors.base.lazy_values"), "LazyValue", None)
    kinds = (asyncio.Task,) if values is None else (asyncio.Task, values)
    found: list[str] = []
    for thing in gc.get_objects():
        # By type and not by isinstance, which would ask objects that pretend to be something else.
        if issubclass(type(thing), kinds):
            if not isinstance(thing, asyncio.Task):
                found.append(f"value {thing!r}")
            elif not thing.done():
                found.append(f"asyncio task {thing!r}")
    return found
