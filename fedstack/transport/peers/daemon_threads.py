"""Starts daemon threads, with advice in the error if the system cannot start another thread."""

import asyncio
import threading
from collections.abc import Callable

from fedstack.errors import ResourceLimitError


def start_daemon(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Starts a thread that does not keep the process from ending.

    Args:
      target: The function to run.
      *arguments: The arguments of `target`.
      name: The thread's name in debuggers.

    Raises:
      ResourceLimitError: If the system cannot start another thread.
    """
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        found = str(error) or type(error).__name__
        raise ResourceLimitError(
            f"The system did not start another thread: {found}; allow more processes and "
            "memory (ulimit -u, or the limits of the container), end other programs, or use fewer threads "
            "(max_concurrent_clients, fedstack serve --threads)"
        ) from error
    return thread


def start_loop(serve: Callable[[asyncio.AbstractEventLoop], object], *, name: str) -> asyncio.AbstractEventLoop:
    """Returns a new event loop that runs on its own thread.

    Raises:
      ResourceLimitError: If the system cannot start another thread.
    """
    loop = asyncio.new_event_loop()
    try:
        start_daemon(serve, loop, name=name)
    except ResourceLimitError:
        loop.close()
        raise
    return loop
