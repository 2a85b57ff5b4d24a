"""Finds the client that ends its worker, by tasks of fewer and fewer clients.

A client that ends the process it runs in takes one worker after the other, for each attempt runs it somewhere else.
After two losses (`lost_ranges.py`) the clients that were in both are halved: one half runs as a task of its own, and if
that loses its worker the client is there, else in the other half. A few more workers end so, which the engine starts
anew. What these tasks compute is thrown away, and so are their errors: where nobody is found, the attempt goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fedstack.computations.plan.tasks import Phase
from fedstack.errors import FedstackError, LeafError, NoWorkersError, WorkerUnavailableError
from fedstack.executors.concurrency.progress import name_of
from fedstack.executors.remote.phases.lost_ranges import Suspects
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted

_logger = logging.getLogger(__name__)
# As long as workers of ours look for one.
_MOST_SECONDS = 600.0


async def find_ending(run: Callable[[range], Awaitable[object]], phase: Phase, suspects: Suspects) -> None:
    """Looks for one client that ends its worker.

    Args:
      run: Runs the phase for some of the clients at a worker.
      phase: The phase.
      suspects: The clients that were lost with two workers.

    Raises:
      LeafError: If there is one; it is the user's, and not tried again.
      NoWorkersError: If no worker is left.
    """
    clients = suspects.clients
    told = suspects.losses, clients.start, clients.stop - 1
    _logger.warning("%d workers have ended while clients %d to %d ran; looking for one that ends its worker", *told)
    try:
        found = await Deadline(_MOST_SECONDS).wait(_halved(run, clients))
    except asyncio.TimeoutError:
        found = None
    if found is None:
        _logger.warning("None of the clients %d to %d ends its worker; going on", clients.start, clients.stop - 1)
        return
    client, ended, last = found
    name = name_of(phase.program)
    raise LeafError(
        f"{repr(name) if name else 'a client'} ended its worker; at client {client}; it ended "
        f"{counted(suspects.losses + ended, 'worker')} before it was found; mend the function: {last}",
        computation_name=name,
        client_index=client,
    ) from last


async def _halved(
    run: Callable[[range], Awaitable[object]], clients: range
) -> tuple[int, int, WorkerUnavailableError] | None:
    """Returns the client, how many workers it has ended, and the loss of the last of them."""
    if await _loss(run, clients[:0]) is not None:  # whatever ends workers is none of them
        return None
    ended, last = 0, None
    while len(clients) > 1:
        middle = len(clients) // 2
        last = await _loss(run, clients[:middle])
        ended += last is not None
        clients = clients[:middle] if last else clients[middle:]
    if last is None:  # it has never run alone
        last = await _loss(run, clients)
        ended += 1
    return None if last is None else (clients.start, ended, last)


async def _loss(run: Callable[[range], Awaitable[object]], clients: range) -> WorkerUnavailableError | None:
    try:
        await run(clients)
    except NoWorkersError:
        raise
    except WorkerUnavailableError as error:
        return error
    except FedstackError:  # of a client, for example, which the attempt raises too
        return None
    return None
