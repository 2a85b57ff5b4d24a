"""Starts daemon threads, and says what to do where the system has no room for another one."""

import asyncio
import threading
from collections.abc import Callable

from fedstack.errors import ResourceLimitError


def start_daemon(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Starts a thread that does not keep the process from ending.

    Args:
      target: What it runs.
      *arguments: What `target` gets.
      name: What debuggers show.

    Raises:
      ResourceLimitError: If the system starts none.
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
    """Returns a new event loop that a thread serves.

    Raises:
      ResourceLimitError: If the system starts none.
    """
    loop = asyncio.new_event_loop()
    try:
        start_daemon(serve, loop, name=name)
    except ResourceLimitError:
        loop.close()
        raise
    return loop
