"""Finds the client that ends its worker, using tasks at the workers of an engine.

A `CulpritSearch` selects the suspected clients that a task runs, and receives whether the task lost its worker. This
ends a few more workers, which the engine restarts. The results of these tasks are discarded, and so are their errors:
if no client is found, the attempt continues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fedstack.computations.plan.tasks import Phase
from fedstack.errors import FedstackError, LeafError, NoWorkersError, WorkerUnavailableError
from fedstack.executors.concurrency.progress import name_of
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.membership.ledger import Suspects
from fedstack.membership.search import CulpritSearch, Ended

_logger = logging.getLogger(__name__)
# As long as fedstack workers search for a client.
_MOST_SECONDS = 600.0


async def find_ending(run: Callable[[range], Awaitable[object]], phase: Phase, suspects: Suspects) -> None:
    """Searches for a client that ends its worker.

    Args:
      run: Runs the phase for some of the clients at a worker.
      phase: The phase.
      suspects: The clients that were lost with two workers.

    Raises:
      LeafError: If there is such a client; it is the user's error, and is not retried.
      NoWorkersError: If no worker is left.
    """

    async def ended(clients: range) -> Ended | None:
        try:
            await run(clients)
        except NoWorkersError:
            raise
        except WorkerUnavailableError as error:
            return Ended(error.exit_status, cause=error)
        except FedstackError:  # a client's error, for example, which the attempt raises too
            pass
        return None

    _logger.warning("%s; looking for one that ends its worker", suspects)
    try:
        found = await Deadline(_MOST_SECONDS).wait(CulpritSearch(suspects.clients, sees=False).drive(ended))
    except asyncio.TimeoutError:
        found = None
    if found is None:
        _logger.warning("None of them ends its worker; going on")
        return
    name, client, last = name_of(phase.program), found.units.start, found.ended.cause
    raise LeafError(
        f"{repr(name) if name else 'a client'} ended its worker; at client {client}; it ended "
        f"{counted(suspects.losses + found.processes, 'worker')} before it was found; fix the function: {last}",
        computation_name=name,
        client_index=client,
    ) from last
