"""Asks workers to write results of clients to a store that they share with the caller, in place of sending them.

| step | who |
| --- | --- |
| says which results of a call belong to which store (`StoringResults`) | the owner of the store, around the call |
| asks for them with a phase (`ask`), if the worker has the store | the sender of the phase |
| writes those of the clients that are done to new files, and sends their places (`ResultWriter`) | the worker |
| does the same without a worker (`storing_sink.py`) | a phase in the caller's process |
| finds the places in the result of the call (`StoredResult`) | the owner of the store |

Each request has names of its own. So a phase may run twice, or be lost, and the owner removes what did not count.
"""

import json
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import cast

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.stored_values import StoredFile, StoredValue, StoreFolders
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.columns import Column, column_from_payloads
from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.computations.values.federated_values import column_from_values
from fedstack.errors import CarrierError, InvalidValueError, ProgramStateError
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.draws import draw_id
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse

_logger = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class ResultStore:
    """Where results of a call belong.

    Attributes:
      share: Returns the id of the store; `None` if others cannot have it. May block.
      type_spec: The type of the results.
      client_ids: The id of each client of the call, as JSON.
      name: What the names of the call's files begin with.
      batch: How many results a phase in the caller's process writes at once.
    """

    share: Callable[[], str | None]
    type_spec: Type
    client_ids: Sequence[object]
    name: str
    batch: int

    def own_name(self) -> str:
        """Returns what the names of the files of one part of the call begin with. No other part has the same."""
        return f"{self.name}-{draw_id().hex()}"


@attrs.frozen(eq=False)
class StoringResults(SystemScope):
    """Part of the scope around a call: where its results at clients belong. Calls inside of it are not concerned.

    Attributes:
      stores: One for each type of results.
      folders: Reads the files of all stores in this process.
    """

    stores: Sequence[ResultStore]
    folders: StoreFolders

    def of_invocation(self) -> "StoringResults | None":
        return _OfCall(self.stores, self.folders)


class _OfCall(StoringResults):
    """Part of the scope of the call itself."""

    def of_invocation(self) -> None:
        return None


def stores_of_call(phase: Phase) -> Mapping[int, ResultStore]:
    """Returns where results of a phase of the current call belong, by their positions among those that are kept."""
    storing = current_scope().of(_OfCall)
    if storing is None:
        return {}
    return {
        index: one
        for index, (_, member) in enumerate(phase.held)
        for one in storing.stores
        if member.is_equivalent_to(one.type_spec)
    }


def ids_of(wanted: Mapping[int, ResultStore]) -> dict[int, str]:
    """Returns the ids of those stores that others may have. May block."""
    return {index: store for index, one in wanted.items() if (store := one.share()) is not None}


def folders_of_call() -> StoreFolders | None:
    """Returns the stores of results of the current call."""
    storing = current_scope().of(_OfCall)
    return None if storing is None else storing.folders


def ask(
    request: PhaseRequest,
    wanted: Mapping[int, ResultStore],
    ids: Mapping[int, str],
    has: Container[str],
    clients: range,
) -> None:
    """Adds to a request which results to write to the stores that the peer has.

    Args:
      request: The request.
      wanted: From `stores_of_call`.
      ids: The id of each store.
      has: The ids of the stores that the peer has.
      clients: The clients of the request.
    """
    for index, store in ids.items():
        if store in has:
            one = wanted[index]
            own = json.dumps(one.client_ids[clients.start : clients.stop]).encode()
            request.store.add(held=index, store=store, name=one.own_name(), clients=own)


def check_stored(response: PhaseResponse, request: PhaseRequest, phase: Phase) -> None:
    """Checks that a peer has written only what it was asked to write.

    Raises:
      InvalidValueError: If it has written something else.
    """
    asked = {one.held: one for one in request.store}
    for index, (message, (_, member)) in enumerate(zip(response.held, phase.held)):
        if message.WhichOneof("kind") == "stored":
            one, stored = asked.get(index), message.stored
            if (
                one is None
                or stored.store != one.store
                or not type_from_proto(stored.type).is_equivalent_to(member)
                or not all(file.name.startswith(one.name) for file in stored.file)
            ):
                raise InvalidValueError(
                    "Expected the results of clients, found places in a store for which nobody has asked; check that "
                    "the worker runs the same version of fedstack"
                )


class ResultWriter:
    """Writes results of a phase to stores, as its request asks. Any thread may write.

    Args:
      request: The request.
      phase: The phase.
      folders: The stores of this process; `None` for none.

    Raises:
      InvalidValueError: If the request asks for results that do not exist.
    """

    def __init__(self, request: PhaseRequest, phase: Phase, folders: StoreFolders | None) -> None:
        self._asked = list(request.store) if folders is not None else []
        self._ids = [_ids_of(one, request.clients, len(phase.held)) for one in self._asked]
        self._first = request.first_client
        self._phase = phase
        self._folders = folders
        self._tolerance = current_scope().of(Tolerance)

    @property
    def writes(self) -> bool:
        """Whether the request asks for anything."""
        return bool(self._asked)

    def write(self, clients: range, result: PhaseResult, packer: Packer) -> None:
        """Writes results of some clients, and puts their places into the result. What cannot be written is sent.

        Args:
          clients: The clients.
          result: Their contribution.
          packer: Packs the result.
        """
        folders = self._folders
        if folders is None:
            return
        absent = () if self._tolerance is None else self._tolerance.absent_in(clients)
        missing = {*result.failures, *result.again, *absent}
        there = [place for place, client in enumerate(clients) if client not in missing]
        written = set[str]()
        for one, ids in zip(self._asked, self._ids):
            (_, member), column = self._phase.held[one.held], result.columns[one.held]
            if len(there) < len(clients):
                items = column.items()
                column = column_from_payloads([items[place] for place in there], member)
            own = json.dumps([ids[clients.start - self._first + place] for place in there]).encode()
            try:
                found = folders.write(one.store, f"{one.name}-{clients.start:x}", member, own, column)
            except (CarrierError, ProgramStateError) as error:
                _logger.warning("Sending the states of clients, because they cannot be written here: %s", error)
                continue
            result.columns[one.held] = _placed(found, there, StoredFile(one.store, "", 0, member, folders), clients)
            written.add(one.store)
        packer.stores = written  # states that come back as they were read are sent, unless they have been written


def _ids_of(asked: PhaseRequest.Store, clients: int, held: int) -> Sequence[object]:
    try:
        found = cast(object, json.loads(asked.clients))
    except (ValueError, RecursionError):
        found = None
    if asked.held >= held or not isinstance(found, list) or len(cast("list[object]", found)) != clients:
        raise InvalidValueError(
            f"Expected one of {held} results to store for {clients} clients, with their ids as JSON, found the result "
            f"{asked.held} with other ids"
        )
    return cast("list[object]", found)


def _placed(found: Sequence[StoredValue], there: Sequence[int], nowhere: StoredFile, clients: range) -> Column:
    """Returns a column of the places of clients' results."""
    places = [StoredValue(nowhere, -1)] * len(clients)
    for place, value in zip(there, found):
        places[place] = value
    return column_of_places(places, nowhere.type_spec, clients.start)


def column_of_places(places: Sequence[StoredValue], type_spec: Type, first: int) -> Column:
    """Returns a column of the places of results.

    Args:
      places: The places.
      type_spec: The type of the results.
      first: The index of the first client.
    """
    return DeferredColumn(places, type_spec, "a result of the clients", column_from_values, first)
