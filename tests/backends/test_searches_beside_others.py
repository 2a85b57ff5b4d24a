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
    """Three workers, the first of which is lost twice; clients of the third run from the second loss on.

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
        self._is_lost_twice = asyncio.Event()
        self._searches = asyncio.Event()
        self._has_run_beside = asyncio.Event()

    def _lose(self, place: str, number: int, task: Task) -> None:
        if place == "thread 0" and self._losses < 2:
            self._losses += 1
            if self._losses == 2:
                self._is_lost_twice.set()
            raise WorkerUnavailableError(f"The worker {place} is lost")

    async def run(self, place, task, heard):
        if place != "thread 2" or self._is_lost_twice.is_set():
            answer = await super().run(place, task, heard)
            if self._is_lost_twice.is_set():
                self.events.append(place)
            return answer
        await (self._searches if self.searches_apart else self._is_lost_twice).wait()
        if self._found is not None:
            try:
                await asyncio.Event().wait()
            finally:
                self.events.append("cancelled")
        answer = await super().run(place, task, heard)
        self.events.append("beside")
        self._has_run_beside.set()
        return answer

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        self.events.append(f"search of {suspects[0].clients}")
        self._searches.set()
        if self._found is not None:
            await asyncio.sleep(0)
        elif self.searches_apart:
            await self._has_run_beside.wait()
        self.events.append("verdict")
        if self._found is not None:
            raise self._found
        return True


def test_those_that_are_not_suspected_run_meanwhile_and_the_others_afterwards() -> None:
    backend = Searching(apart=True)
    with context_over(backend):
        assert total(list(range(9))) == 36
    begin, end = backend.events.index("search of range(0, 1)"), backend.events.index("verdict")
    assert "beside" in backend.events[begin:end]
    assert backend.events[-1].startswith("thread "), "the suspect runs after the verdict"


def test_a_client_that_is_found_ends_what_runs_meanwhile() -> None:
    backend = Searching(apart=True, found=LeafError("it was client 1", client_index=1))
    with context_over(backend), pytest.raises(LeafError, match="it was client 1"):
        total(list(range(9)))
    assert backend.events[-1] == "cancelled"
    assert "verdict" in backend.events


def test_a_search_that_ends_workers_waits_for_all_and_all_wait_for_it() -> None:
    backend = Searching(apart=False)
    with context_over(backend):
        assert total(list(range(9))) == 36
    begin = backend.events.index("search of range(0, 1)")
    assert "beside" in backend.events[:begin]
    assert backend.events[begin + 1] == "verdict"
    assert len(backend.events) > begin + 2
