"""Defines what fedstack's executors ask of each other beyond the four verbs: whole columns of clients at once.

Private until 1.0. An executor of another origin is driven through the four verbs, one by one (`one_by_one`).
"""

import abc
import asyncio
from collections.abc import Sequence

from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import Column
from fedstack.executors.base.client_blocks import Sink
from fedstack.executors.concurrency.leaf_threads import LeafThreads, runs_inline


class LoadNeeded(Exception):
    """Raised in place of blocking an event loop: loading may import anything, or compile for seconds.

    Attributes:
      threads: Where to load instead.
    """

    def __init__(self, threads: LeafThreads) -> None:
        super().__init__("Expected `linked` on an event loop, found `link`")
        self.threads = threads


class BulkExecutor(Executor):
    """An executor of unplaced work that runs programs, once or for many clients."""

    @property
    @abc.abstractmethod
    def drives_inline(self) -> bool:
        """Whether work here needs no event loop unless it asks for one (`need_event_loop`)."""

    @property
    def leaf_threads(self) -> LeafThreads | None:
        """The threads of the leaf executor below, for work of our own beside the leaves'."""
        return None

    @abc.abstractmethod
    def link(self, program: Program) -> Program:
        """Returns the program with an operation for each of its sources.

        Coroutines use `linked`, which lets it take its time.

        Raises:
          LoadNeeded: If a leaf computation is still to be loaded, and the caller's thread is an event loop's.
          UnsupportedIntrinsicError: If no executor from here down runs one of its intrinsics.
          CarrierError: If a leaf computation cannot be loaded.
        """

    @abc.abstractmethod
    async def run_once(self, program: Program, inputs: Sequence[object]) -> tuple[object, ...]:
        """Runs a linked program once: payloads in, payloads out."""

    @abc.abstractmethod
    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        """Runs a linked program once per client and gives what it yields to `sink`, block by block."""


async def linked(executor: BulkExecutor, program: Program) -> Program:
    """Links a program, on a leaf thread where that loads leaf computations and the caller's thread is a loop's."""
    try:
        return executor.link(program)
    except LoadNeeded as needed:
        threads = needed.threads
    return await threads.run(lambda: executor.link(program))


def holds_up_a_loop() -> bool:
    """Tells whether other things wait on an event loop for what the current thread does."""
    if runs_inline():
        return False  # whoever drives this coroutine waits for it anyway
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
