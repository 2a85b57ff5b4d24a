"""Runs fedstack the way a benchmark wants it: on one core or more, in a context of its own."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import fedstack
from benchmarks.harness import cores


@contextlib.contextmanager
def running(threads: int | None) -> Iterator[None]:
    """Makes a local context the current one for the block.

    Args:
      threads: 1 to keep everything on one core and clients one after the other, a number of cores, or `None` for all
        cores and what a user gets without options.
    """
    with contextlib.ExitStack() as stack:
        if threads is not None:
            stack.enter_context(cores(threads))
        most = 1 if threads == 1 else None
        stack.enter_context(fedstack.create_sync_local_execution_context(max_concurrent_clients=most))
        yield


class TwoThreads:
    """The floor of two threads: half of the work here, half on a bare thread that waits for it.

    Make it inside `running`, so that both threads are on the same cores as fedstack's.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(threading.get_ident).result()  # the thread starts now

    def run(self, first: Callable[[], object], second: Callable[[], object]) -> tuple[object, object]:
        """Runs both at the same time and returns what they return."""
        other = self._pool.submit(second)
        return first(), other.result()

    def __enter__(self) -> "TwoThreads":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
