"""Writes results of clients to the store where they belong while other clients of this process run.

The memory of a phase then does not grow with its clients, as it does not if workers write results.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence

import attrs

from fedstack.computations.codec.stored_values import StoredResult, StoreFolders
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.values.columns import Column, concatenate
from fedstack.errors import CarrierError, ProgramStateError
from fedstack.executors.base.phase_sink import PhaseSink
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.stored.stored_results import ResultStore, column_of_places, folders_of_call, stores_of_call

_logger = logging.getLogger(__name__)


def phase_sink(phase: Phase, states: Sequence[FoldState], skip: frozenset[int], clients: int) -> PhaseSink:
    """Returns the sink of a phase of the current call.

    Args:
      phase: The phase.
      states: The state of each fold.
      skip: The indices of folds that are complete.
      clients: The number of clients.
    """
    folders = folders_of_call() if phase.held else None
    if folders is None:
        return PhaseSink(phase, states, skip)
    stores = {index: one for index, one in stores_of_call(phase).items() if clients > one.batch}
    return StoringSink(phase, states, skip, stores, folders) if stores else PhaseSink(phase, states, skip)


@attrs.define
class _Batch:
    """Results that have not been written: the index of the first client of each block, and their number."""

    blocks: list[int] = attrs.field(factory=list[int])
    results: int = 0


class StoringSink(PhaseSink):
    """A sink that writes kept results in batches. Those of failed clients, and of the last batch, stay in memory.

    Args:
      phase: The phase.
      states: The state of each fold.
      skip: The indices of folds that are complete.
      stores: Where kept results belong, by their positions.
      folders: The stores of this process.
    """

    def __init__(
        self,
        phase: Phase,
        states: Sequence[FoldState],
        skip: frozenset[int],
        stores: Mapping[int, ResultStore],
        folders: StoreFolders,
    ) -> None:
        super().__init__(phase, states, skip)
        self._stores = dict(stores)
        self._folders = folders
        self._batches = {index: _Batch() for index in stores}
        self._batching = threading.Lock()

    def keep(self, start: int, columns: Sequence[Column]) -> None:
        """Stores the columns of the clients from `start` on, and writes them if there are enough."""
        super().keep(start, columns)
        full: list[tuple[int, Sequence[int]]] = []
        with self._batching:
            for index, store in self._stores.items():
                batch = self._batches[index]
                batch.blocks.append(start)
                batch.results += len(columns[index])
                if batch.results >= store.batch:
                    full.append((index, batch.blocks))
                    self._batches[index] = _Batch()
        for index, blocks in full:
            self._write(index, blocks)

    def _write(self, index: int, blocks: Sequence[int]) -> None:
        """Writes results, and keeps their places instead. What cannot be written stays in memory."""
        store, kept, (_, member) = self._stores[index], self._kept[index], self.phase.held[index]
        with self._lock:
            columns = [kept[start] for start in blocks]
        clients = [store.client_ids[start + at] for start, one in zip(blocks, columns) for at in range(len(one))]
        try:
            folder = store.share()
            if folder is None:
                return
            ids = json.dumps(clients).encode()
            found = self._folders.write(folder, store.own_name(), member, ids, concatenate(columns, member))
        except (CarrierError, ProgramStateError) as error:  # so will the update, which says what to do
            _logger.debug("Keeping states of clients in memory, because they cannot be written: %s", error)
            return
        places = iter([StoredResult(value.file, value.row) for value in found])
        with self._lock:
            for start, column in zip(blocks, columns):
                kept[start] = column_of_places([next(places) for _ in range(len(column))], member, start)
