"""Reads states of clients that an older version of a program has saved with another structure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import RecordLayout, Records, values_of
from fedstack.data.client_states.state_shards import FileShard, StateShard
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.value_text import describe

# Returns a client's state, given the values of an older one by their paths.
MigrateState: TypeAlias = Callable[[Mapping[str, object]], object]


def check_migrate(migrate: object) -> None:
    """Checks that an argument is a function that converts states, or `None`.

    Raises:
      InvalidValueError: If it is neither.
    """
    if migrate is not None and not callable(migrate):
        raise InvalidValueError(
            f"Expected a function as migrate, found {describe(migrate)}; pass one that gets the values of a saved "
            "state by path, and returns the state as it is now"
        )


def migrated(shard: FileShard, layout: RecordLayout, migrate: MigrateState) -> StateShard:
    """Returns a shard with records of a layout: the given one, or one that converts its records."""
    if layout.has(shard.fields):
        return shard
    return _MigratedShard(shard.name, shard.digest, shard.client_ids, shard, layout, migrate)


@attrs.frozen(eq=False)
class _MigratedShard:
    """A shard whose records are converted when they are read, because they have an older layout. See `StateShard`."""

    name: str
    digest: int
    client_ids: Sequence[ClientId]
    shard: FileShard
    layout: RecordLayout
    migrate: MigrateState
    is_current = False

    def read(self, rows: "NDArray[np.intp]") -> Records:
        """Returns some records; see `StateShard.read`.

        Raises:
          InvalidValueError: If the function of the program fails.
          TypeMismatchError: If it returns another state than the program declares.
        """
        clients = [self.client_ids[row] for row in cast("list[int]", rows.tolist())]
        old = values_of(self.shard.read(rows), self.shard.fields)
        states = [self._state(client, values) for client, values in zip(clients, old)]
        return self.layout.records(
            self.layout.checked(states, lambda index: f"what migrate returns for the client {clients[index]!r}")
        )

    def _state(self, client: ClientId, values: Mapping[str, object]) -> object:
        try:
            return self.migrate(values)
        except Exception as error:
            raise InvalidValueError(
                f"Expected migrate to convert the state of the client {client!r} in {self.shard.path}, found that it "
                f"raises {type(error).__name__}: {text_of(error)}; its argument has the values "
                f"{', '.join(map(repr, values))}"
            ) from error
