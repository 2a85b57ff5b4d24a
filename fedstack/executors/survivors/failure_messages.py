"""Converts what phases say about clients that fail, or are late, into messages, and back.

The reader checks what a worker says of its clients.
"""

from collections.abc import Iterable, Mapping, Set

from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import FedstackError, InvalidValueError, RemoteError
from fedstack.executors.survivors.ending import Ending, left_out, left_out_among, ranges_of
from fedstack.executors.survivors.outcomes import Telling
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.transport.wire.status import details_of, error_from_status

# The number of failures of clients that are sent with tracebacks, and the maximum size of each of the others, in bytes.
_MOST_DETAILED = 100
_BRIEF_BYTES = 1000


def write_tolerance(request: PhaseRequest, scope: WorkScope, clients: range, *, answers_once: bool = False) -> None:
    """Adds to a request what the scope says: who may fail or is absent, and whether to tell of each client.

    Args:
      request: The request of a phase.
      scope: The scope of the phase.
      clients: The clients whose failures the sender handles.
      answers_once: Whether the sender cannot ask the receiver to end the phase, which then ends by itself when enough
        of its own clients are done.
    """
    request.tells, tolerance = scope.of(Telling) is not None, scope.of(Tolerance)
    if tolerance is not None:
        request.tolerance.absent.extend(tolerance.absent_in(clients))
        request.tolerance.client_seconds = tolerance.client_seconds or 0.0
        request.tolerance.retries = tolerance.retries
        request.tolerance.retries_elsewhere = tolerance.retries_elsewhere
        if tolerance.ending is not None and answers_once:
            present = len(clients) - len(tolerance.absent_in(clients))
            request.tolerance.enough = tolerance.ending.share_of(present)
        else:
            request.tolerance.ends = tolerance.ending is not None
        request.tolerance.SetInParent()


def read_tolerance(request: PhaseRequest, ending: Ending | None = None) -> Tolerance | None:
    """Returns the conditions under which clients of a phase may fail, or are absent; `None` if none may fail.

    Args:
      request: The request of the phase.
      ending: Ends the phase, if the request says that the sender may end it; `None` if the sender cannot.
    """
    if not request.HasField("tolerance"):
        return None
    found = request.tolerance
    seconds = found.client_seconds if found.client_seconds > 0 else None
    ending = Ending(found.enough, leaves_out=True) if found.enough else ending if found.ends else None
    return Tolerance(sorted(found.absent), seconds, found.retries, found.retries_elsewhere, ending)


def write_failures(
    response: PhaseResponse, failures: Mapping[int, FedstackError], again: Mapping[int, FedstackError]
) -> None:
    """Adds to a response which clients have failed, for good or to run again; see `PhaseResult`."""
    unfinished = left_out_among(again)
    for clients in ranges_of(sorted(unfinished)):
        response.unfinished.add(first_client=clients.start, clients=len(clients))
    for errors, written in ((failures, response.failure), (again, response.again)):
        for number, client in enumerate(sorted(errors.keys() - unfinished)):
            error = errors[client]
            details = details_of(error) if number < _MOST_DETAILED else details_of(error, most_bytes=_BRIEF_BYTES)
            written.add(client=client).status.ParseFromString(details)


def read_failures(
    response: PhaseResponse, clients: range, tolerance: Tolerance | None, address: str
) -> tuple[dict[int, FedstackError], dict[int, FedstackError]]:
    """Returns the errors of the clients that have failed for good, and of those that are to run again, by client.

    Args:
      response: The response.
      clients: The clients of the response.
      tolerance: The conditions of the phase; `None` if no client may fail.
      address: The address of the worker, for error messages.

    Raises:
      InvalidValueError: If clients cannot have failed in this way.
    """
    absent = () if tolerance is None else tolerance.absent_in(clients)
    failures = _read_errors(response.failure, clients, None if tolerance is None else set(absent), address)
    runs_again = tolerance is not None and tolerance.retries_elsewhere
    again = _read_errors(response.again, clients, {*absent, *failures} if runs_again else None, address)
    may_be_late = tolerance is not None and tolerance.ending is not None
    again.update(_read_late(response, clients, {*absent, *failures, *again} if may_be_late else None))
    return failures, again


def failed_in(response: PhaseResponse) -> int:
    """Returns the number of clients that have failed or are late, or are to run again, according to a response."""
    return len(response.failure) + len(response.again) + sum(some.clients for some in response.unfinished)


def _read_errors(
    messages: Iterable[PhaseResponse.Failure], clients: range, others: Set[int] | None, address: str
) -> dict[int, FedstackError]:
    """Returns the errors of the clients that have failed, by client.

    Args:
      messages: The failures.
      clients: The clients of the response.
      others: Those of them that cannot have failed; `None` if no client can.
      address: The address of the worker.
    """
    failures: dict[int, FedstackError] = {}
    for message in messages:
        client, status = message.client, message.status
        if others is None or client not in clients or client in others or client in failures:
            raise wrong_clients(clients, f"a failure of client {client}")
        error = error_from_status(status.code, status.message, status.SerializeToString(), address)
        failures[client] = error if isinstance(error, FedstackError) else RemoteError(str(error))
        failures[client].client_index = client
    return failures


def _read_late(response: PhaseResponse, clients: range, others: Set[int] | None) -> dict[int, FedstackError]:
    """Returns the errors of the clients that are late, by client; for the arguments, see `_read_errors`."""
    late: dict[int, FedstackError] = {}
    for message in response.unfinished:
        some = range(message.first_client, message.first_client + message.clients)
        if others is None or not some or not clients.start <= some.start < some.stop <= clients.stop:
            raise wrong_clients(clients, f"clients {some.start} to {some.stop - 1} that are late")
        for client in some:
            if client in others or client in late:
                raise wrong_clients(clients, f"client {client} that is late")
            late[client] = left_out(client)
    return late


def wrong_clients(clients: range, found: object) -> InvalidValueError:
    """Returns the error for a response that does not fit the clients of the request."""
    return InvalidValueError(
        f"Expected the fold of clients {clients.start} to {clients.stop - 1}, found {found}; check that the worker "
        "runs the same version of fedstack"
    )
