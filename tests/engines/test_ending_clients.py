"""Of clients that were lost with two workers, one that ends its worker alone is found; no other is blamed."""

import asyncio
from collections.abc import Callable

import pytest

from fedstack.backends.ending_clients import find_ending
from fedstack.computations.plan.program import Program
from fedstack.computations.plan.tasks import Phase
from fedstack.errors import LeafError, NoWorkersError, WorkerUnavailableError
from fedstack.membership.ledger import Suspects

PHASE = Phase(Program((), (), (), (), 0), (), (), ())
SUSPECTS = Suspects(range(10, 31), (), ("a", "b"))


def search(ends: Callable[[range], bool], error: type[Exception] = WorkerUnavailableError) -> list[range]:
    """Returns what was run to find who ends the worker that runs some clients."""
    ran: list[range] = []

    async def run(clients: range) -> None:
        ran.append(clients)
        if ends(clients):
            raise error("it was lost")

    asyncio.run(find_ending(run, PHASE, SUSPECTS))
    return ran


def test_each_client_is_found() -> None:
    for client in SUSPECTS.clients:
        with pytest.raises(
            LeafError, match=f"at client {client}; .* workers crashed before this client was identified"
        ) as caught:
            search(lambda clients, client=client: client in clients)
        assert caught.value.client_index == client


def test_clients_that_end_a_worker_only_together_are_not_blamed() -> None:
    assert len(search(lambda clients: len(clients) > 2)) > 2
    assert range(10, 20) in search(lambda clients: {12, 25} <= set(clients))


def test_a_worker_that_ends_without_a_client_blames_nobody() -> None:
    assert search(lambda clients: True) == [range(10, 10)]


def test_an_error_of_a_client_is_no_loss() -> None:
    assert search(lambda clients: 12 in clients, LeafError)


def test_a_search_ends_where_no_worker_is_left() -> None:
    with pytest.raises(NoWorkersError):
        search(lambda clients: True, NoWorkersError)
