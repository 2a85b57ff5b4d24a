"""Wakes requests that wait until there may be something for them."""

import asyncio
import contextlib
from collections.abc import Generator
from typing import TypeAlias

Waiter: TypeAlias = "asyncio.Future[None]"


class News:
    """Those who wait, by the pass that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[Waiter, None]] = {}  # in order, and not as a set has them

    @contextlib.contextmanager
    def waiter(self, pass_id: bytes) -> Generator[Waiter, None, None]:
        """Gives what is done when there may be something new, from now on."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(pass_id, {})
        waiting[waiter] = None
        try:
            yield waiter
        finally:
            del waiting[waiter]
            if not waiting and self._waiting.get(pass_id) is waiting:
                del self._waiting[pass_id]

    def tell(self, pass_id: bytes, but: "Waiter | None" = None) -> None:
        """Wakes those who wait for a pass, but for one of them."""
        for waiter in self._waiting.get(pass_id, ()):
            if waiter is not but and not waiter.done():
                waiter.set_result(None)

    def tell_all(self) -> None:
        """Wakes all."""
        for pass_id in self._waiting:
            self.tell(pass_id)

    def __repr__(self) -> str:
        return f"<News for {sum(map(len, self._waiting.values()))} that wait>"
