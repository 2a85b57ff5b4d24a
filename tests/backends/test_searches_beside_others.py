"""While a backend searches for a client that ends its worker, clients that are not suspected run, where it can be."""

import asyncio
from collections.abc import Sequence

import federated_language as fl
import numpy as np
import pytest
from engines import ThreadBackend, context_over

import fedstack
from fedstack.backends.backend import Caller
from fedstack.backends.task_phases import PhaseAtClients, Task
from fedstack.errors import LeafError, WorkerUnavailableError
from fedstack.membership.ledger import Suspects

INT = fl.TensorType(np.int32)
# What runs tasks in a process stays for the next task, and here that is this process.
pytestmark = pytest.mark.fedstack_leak_check(False)


@fedstack.python_computation(INT, INT)
def same(value):
    return value


@fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(same, values))


class Searching(ThreadBackend):
    """Three workers, the first of which is lost twice; a search is over once the others have run in the third attempt.

    Args:
      apart: Whether others run during a search.
      found: What it finds.
    """

    def __init__(self, apart: bool, found: LeafError | None = None) -> None:
        super().__init__(3, self._lose)
        self.searches_apart = apart
        self.events: list[str] = []
        self._losses = 0
        self._found = found
        self._others_ran = asyncio.Event()

    def _lose(self, place: str, number: int, task: Task) -> None:
        if place == "thread 0" and self._losses < 2:
            self._losses += 1
            raise WorkerUnavailableError(f"The worker {place} is lost")

    async def run(self, place, task, heard):
        answer = await super().run(place, task, heard)
        if self._losses == 2:
            self.events.append(place)
        if {"thread 1", "thread 2"} <= set(self.events):
            self._others_ran.set()
            if self._found is not None:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.events.append("cancelled")
        return answer

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        self.events.clear()
        self._others_ran.clear()
        self.events.append(f"search of {suspects[0].clients}")
        if self.searches_apart:
            await self._others_ran.wait()
        self.events.append("verdict")
        if self._found is not None:
            raise self._found
        return True


def test_those_that_are_not_suspected_run_meanwhile_and_the_others_afterwards() -> None:
    backend = Searching(apart=True)
    with context_over(backend):
        assert total(list(range(9))) == 36
    begin, *others, verdict, last = backend.events
    assert (begin, sorted(others)) == ("search of range(0, 3)", ["thread 1", "thread 2"])
    assert (verdict, last) == ("verdict", "thread 0")


def test_a_client_that_is_found_ends_what_runs_meanwhile() -> None:
    backend = Searching(apart=True, found=LeafError("it was client 1", client_index=1))
    with context_over(backend), pytest.raises(LeafError, match="it was client 1"):
        total(list(range(9)))
    assert backend.events[3:] == ["verdict", "cancelled"]


def test_all_wait_for_a_search_that_ends_workers() -> None:
    backend = Searching(apart=False)
    with context_over(backend):
        assert total(list(range(9))) == 36
    assert backend.events[:2] == ["search of range(0, 3)", "verdict"]
    assert sorted(backend.events[2:]) == ["thread 0", "thread 1", "thread 2"]
