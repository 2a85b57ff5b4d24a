"""Compares the states that clients have in two runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import values_of
from fedstack.data.client_states.state_shards import FileShard
from fedstack.data.client_states.store_folders import opened_shard
from fedstack.foundations.error_text import counted
from fedstack.program.clients.shard_index import ShardIndex
from fedstack.program.runs.differences import Difference, differences
from fedstack.program.states.declared_states import client_states_in as client_states_in

_CLIENTS_AT_ONCE = 100
# The folder of states, and what a version of the program's state says of them; `None` if it has no such states.
Kept: TypeAlias = tuple[Path, object | None]


def differing_clients(name: str, one: Kept, other: Kept) -> list[Difference]:
    """Compares the states of clients in two versions, in their bits.

    Args:
      name: The name of the states.
      one: The states of the first version.
      other: The states of the second version.

    Returns:
      What differs for the first client that differs, and for how many clients something does.

    Raises:
      ProgramStateError: If a file of states is missing or damaged.
    """
    indexes = [_index_of(kept) for kept in (one, other)]
    left, right = (set(index.client_ids) for index in indexes)
    found: list[Difference] = []
    count = len(left ^ right)
    for index, some in ((0, left - right), (1, right - left)):
        if some:
            where = f"{counted(len(some), 'client')} only in the {('first', 'second')[index]}, such as {_first(some)!r}"
            found.append(Difference(name, where, None))
    both = sorted(left & right, key=_order)
    for start in range(0, len(both), _CLIENTS_AT_ONCE):
        ids = both[start : start + _CLIENTS_AT_ONCE]
        for client, mine, theirs in zip(ids, *(_values_of(index, ids) for index in indexes)):
            if apart := differences(mine, theirs):
                found += [] if count > len(left ^ right) else [_named(one, name, client) for one in apart]
                count += 1
    if count:
        found.append(Difference(name, f"{counted(count, 'client')} of {len(left | right)} differ", None))
    return found


def _named(difference: Difference, name: str, client: ClientId) -> Difference:
    path = "" if difference.name == "the value" else f"/{difference.name}"
    return Difference(f"{name}[{client!r}]{path}", difference.text, difference.largest)


def _index_of(kept: Kept) -> ShardIndex:
    folder, staged = kept
    shards: Sequence[Any] = () if staged is None else cast("Mapping[str, Any]", staged)["shards"]
    return ShardIndex([opened_shard(folder, name, digest) for name, digest in shards])


def _values_of(index: ShardIndex, client_ids: Sequence[ClientId]) -> Iterator[dict[str, object]]:
    """Yields the values of each client's state, by their paths."""
    found: dict[int, dict[str, object]] = {}
    for shard, (some, rows) in index.places(client_ids).items():
        records = cast(FileShard, shard).read(rows)
        found.update(zip(some, values_of(records, cast(FileShard, shard).fields)))
    return (found[place] for place in range(len(client_ids)))


def _order(client: ClientId) -> tuple[str, ClientId]:
    return type(client).__name__, client


def _first(clients: set[ClientId]) -> ClientId:
    return min(clients, key=_order)
