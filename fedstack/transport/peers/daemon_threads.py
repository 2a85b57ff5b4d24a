"""Starts daemon threads. If the system cannot start another thread, the error suggests a solution."""

import asyncio
import threading
from collections.abc import Callable

from fedstack.errors import ResourceLimitError


def start_daemon(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Starts a daemon thread, which does not prevent the process from exiting.

    Args:
      target: The function to run.
      *arguments: The arguments of `target`.
      name: The name of the thread in debuggers.

    Returns:
      The started thread.

    Raises:
      ResourceLimitError: If the system cannot start another thread.
    """
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        found = str(error) or type(error).__name__
        raise ResourceLimitError(
            f"The system cannot start another thread: {found}; raise the limits for processes and "
            "memory (ulimit -u, or the limits of the container), stop other programs, or use fewer threads "
            "(max_concurrent_clients, fedstack serve --threads)"
        ) from error
    return thread


def start_loop(serve: Callable[[asyncio.AbstractEventLoop], object], *, name: str) -> asyncio.AbstractEventLoop:
    """Returns a new event loop that runs on its own daemon thread.

    Args:
      serve: The function that runs the loop. It is called on the new thread.
      name: The name of the thread in debuggers.

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
