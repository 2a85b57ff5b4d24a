"""Finds a client that crashes its worker, by running tasks on the workers of an engine.

A `CulpritSearch` selects suspected clients for each task, and is told whether the worker was lost while it ran the
task. The search crashes a few more workers, which the engine restarts. The results and errors of its tasks are
discarded. If the search finds no client, the attempt continues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fedstack.computations.plan.tasks import Phase
from fedstack.errors import FedstackError, LeafError, NoWorkersError, WorkerUnavailableError
from fedstack.executors.concurrency.observed_phases import name_of
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.membership.ledger import Suspects
from fedstack.membership.search import CulpritSearch, Ended

_logger = logging.getLogger(__name__)
# The same time limit as that of a search on fedstack workers.
_MOST_SECONDS = 600.0


async def find_ending(run: Callable[[range], Awaitable[object]], phase: Phase, suspects: Suspects) -> None:
    """Searches for a client that crashes its worker.

    Args:
      run: Runs the phase for some of the clients on a worker.
      phase: The phase.
      suspects: The clients that were lost with two workers.

    Raises:
      LeafError: If the search finds a client. Since this is an error of the user's function, it is not retried.
      NoWorkersError: If no worker is available.
    """

    async def ended(clients: range) -> Ended | None:
        try:
            await run(clients)
        except NoWorkersError:
            raise
        except WorkerUnavailableError as error:
            return Ended(error.exit_status, cause=error)
        except FedstackError:  # for example, an error of a client, which the attempt itself will raise
            pass
        return None

    _logger.warning("%s; searching for a client that crashes its worker", suspects)
    try:
        found = await Deadline(_MOST_SECONDS).wait(CulpritSearch(suspects.clients, sees=False).drive(ended))
    except asyncio.TimeoutError:
        found = None
    if found is None:
        _logger.warning("None of these clients crashed its worker in the search; the attempt continues")
        return
    name, client, last = name_of(phase.program), found.units.start, found.ended.cause
    raise LeafError(
        f"{repr(name) if name else 'a client'} crashed its worker; at client {client}; "
        f"{counted(suspects.losses + found.processes, 'worker')} crashed before this client was identified; fix the "
        f"function: {last}",
        computation_name=name,
        client_index=client,
    ) from last
