"""Finds the client that ends its worker, by tasks at the workers of an engine.

A `CulpritSearch` says which of the suspected clients a task runs, and hears whether that has lost its worker. A few
more workers end so, which the engine starts anew. What these tasks compute is thrown away, and so are their errors:
where nobody is found, the attempt goes on.
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

    async def ended(clients: range) -> Ended | None:
        try:
            await run(clients)
        except NoWorkersError:
            raise
        except WorkerUnavailableError as error:
            return Ended(error.exit_status, cause=error)
        except FedstackError:  # of a client, for example, which the attempt raises too
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
        f"{counted(suspects.losses + found.processes, 'worker')} before it was found; mend the function: {last}",
        computation_name=name,
        client_index=client,
    ) from last
