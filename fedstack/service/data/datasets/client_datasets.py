"""Splits a dataset that contains the elements of many clients into one dataset per client."""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string
from fedstack.computations.values.column_sequence import BlockSequence, HasBlocks
from fedstack.computations.values.columns import Column, RowsColumn, StructColumn
from fedstack.computations.values.sequences import MAX_SEED, drawn_order
from fedstack.data.client_tables import group_rows
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import checked_seed
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.pipeline import Pipeline
from fedstack.service.data.datasets.sources import ArraysSource, Source
from fedstack.service.data.reading.blocks import picked

_P = TypeVar("_P", bound=Pipeline)


def drawn(n: object, seed: object, key: tuple[int, ...], clients: int) -> list[int]:
    """Draws `n` of the clients at random and returns their indices.

    Args:
      n: The number of clients to draw.
      seed: The seed of the draw.
      key: Identifies the draw: different keys yield different draws for the same seed.
      clients: The total number of clients.

    Raises:
      InvalidValueError: If there are fewer than `n` clients.
    """
    number = checked_seed("n", n)
    if number > clients:
        raise InvalidValueError(
            f"Expected a sample of at most {counted(clients, 'client')}, found a sample of {number}; reduce n"
        )
    return drawn_order(checked_seed("seed", seed, MAX_SEED), key, clients)[:number].tolist()


def key_of(client: object, id_type: TensorType) -> bytes:
    """Returns the wire form of a client's id: text is encoded as UTF-8, and a number as little-endian bytes.

    Raises:
      InvalidValueError: If the id does not have the type `id_type`.
    """
    if is_string(id_type) and isinstance(client, (str, bytes)):
        return client.encode() if isinstance(client, str) else client
    if not is_string(id_type) and isinstance(client, (bool, int, float, np.generic)):
        with contextlib.suppress(OverflowError, ValueError, TypeError):
            number = np.array(client).astype(id_type.dtype.newbyteorder("<"))
            if number == client:
                return number.tobytes()
    raise InvalidValueError(
        f"Expected a client id of type {id_type}, found {describe(cast(object, client))}; client_ids lists the ids"
    )


def id_of(key: bytes, id_type: TensorType) -> Any:
    """Returns the client's id that a wire form from `key_of` encodes.

    Raises:
      InvalidValueError: If `key` is not the wire form of an id of type `id_type`.
    """
    try:
        if is_string(id_type):
            return key.decode()
        (found,) = np.frombuffer(key, id_type.dtype.newbyteorder("<")).tolist()
        return found
    except ValueError as error:
        raise InvalidValueError(f"Expected a client id of type {id_type}, found the bytes {key[:80]!r}") from error


class ClientDatasets(Mapping[Any, _P], Generic[_P]):
    """A mapping from the id of each client to the client's dataset, returned by `Dataset.by_client`.

    If the files of each client are identified by their paths (`client_from_path`), they are read on demand. Any other
    dataset is read as a whole when its clients are first requested, and is then kept in memory.

    Args:
      dataset: The dataset to split by client.
      column: The member of the dataset's elements that contains the client's id.
      make: Creates the dataset of a client from its source.

    Raises:
      TypeMismatchError: If the elements have no member `column`, or the member is not a scalar.
    """

    def __init__(self, dataset: _P, column: str, make: Callable[[Source], _P]) -> None:
        element = dataset.element_type
        members = fields_of(element) if isinstance(element, StructType) else ()
        names = [name for name, _ in members]
        if column not in names:
            raise TypeMismatchError(
                f"Expected by_client to split elements that have a member {column!r}, found elements of type "
                f"{element}; pass the name of the member that contains the client's id"
            )
        self._place = names.index(column)
        self._id_type = members[self._place][1]
        if not isinstance(self._id_type, TensorType) or not is_scalar(self._id_type):
            raise TypeMismatchError(
                f"Expected scalar client ids in column {column!r}, found {self._id_type}; pass the name of a scalar "
                "member"
            )
        self._element = StructType([member for member in members if member[0] != column])
        self._dataset = dataset
        self._make = make
        self._column = column

    @functools.cached_property
    def _apart(self) -> "Mapping[str, Source] | None":
        """The source of each client's elements if clients have separate files, otherwise `None`."""
        return None if self._dataset.steps else self._dataset.source.clients(self._column)

    @property
    def _ids_in_order(self) -> Mapping[Any, object]:
        return self._clients[0] if self._apart is None else self._apart

    @property
    def ids_of_files(self) -> Collection[Any]:
        """The ids of the clients that have separate files, including clients whose files have no rows."""
        return () if self._apart is None else self._apart.keys()

    @functools.cached_property
    def _clients(self) -> tuple[dict[Any, slice], Column]:
        return self.grouped(self._dataset)

    def grouped(self, elements: HasBlocks) -> tuple[dict[Any, slice], Column]:
        """Reads elements and groups them by client.

        Args:
          elements: Provides the dataset's elements in blocks.

        Returns:
          A dict from each client to its slice of the grouped elements, and the grouped elements.
        """
        column = cast(StructColumn, BlockSequence(elements).held(self._dataset.element_type).column)
        clients, rows = self.divided(column)
        stops = np.cumsum(list(map(len, rows))).tolist()
        places = {client: slice(stop - len(mine), stop) for client, mine, stop in zip(clients, rows, stops)}
        if without := set(self.ids_of_files) - places.keys():
            places = dict(sorted({**dict.fromkeys(without, slice(0, 0)), **places}.items()))
        order = np.concatenate(rows) if rows else np.empty(0, np.intp)
        return places, picked(self.without_id(column), order)

    def divided(self, column: StructColumn) -> tuple[list[Any], list[NDArray[np.intp]]]:
        """Returns the clients that have elements in the dataset, in order, and the row indices of each client."""
        return group_rows(self._ids(column.fields[self._place]), self._column)

    def without_id(self, column: StructColumn) -> StructColumn:
        """Returns elements of the dataset without the member for the client's id."""
        return StructColumn(column.fields[: self._place] + column.fields[self._place + 1 :], len(column))

    def _ids(self, ids: Column) -> NDArray[Any]:
        if isinstance(ids, RowsColumn):
            return ids.values
        found = np.empty(len(ids), np.object_)
        try:
            texts = is_string(cast(TensorType, self._id_type))
            found[:] = [cast(bytes, one).decode() if texts else one for one in ids.items()]
        except UnicodeDecodeError as error:
            raise InvalidValueError(
                f"Expected client ids encoded as UTF-8 in column {self._column!r}, found invalid bytes: {error}"
            ) from error
        return found

    @property
    def dataset(self) -> _P:
        """The whole dataset."""
        return self._dataset

    @property
    def column(self) -> str:
        """The name of the member that contains the client's id."""
        return self._column

    @property
    def id_type(self) -> TensorType:
        """The type of the clients' ids."""
        return cast(TensorType, self._id_type)

    @property
    def element_type(self) -> StructType:
        """The type of a client's elements."""
        return self._element

    @property
    def client_ids(self) -> list[Any]:
        """The clients' ids in order, as numbers or `str`."""
        return list(self._ids_in_order)

    def sample(self, n: int, seed: int) -> list[_P]:
        """Returns the datasets of `n` clients drawn at random without replacement.

        Args:
          n: The number of clients.
          seed: The seed of the draw. The same seed always draws the same clients.

        Raises:
          InvalidValueError: If there are fewer than `n` clients.
        """
        ids = self.client_ids
        return [self[ids[place]] for place in drawn(n, seed, (), len(ids))]

    def __getitem__(self, client: Any) -> _P:
        try:
            found = self._ids_in_order[client]
        except (KeyError, TypeError):
            raise KeyError(f"Expected the id of a client, found {describe(client)}; client_ids lists the ids") from None
        if isinstance(found, Source):
            return self._make(found)
        place = cast("slice", found)
        return self._make(ArraysSource(self._element, self._clients[1].slice(place.start, place.stop)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ids_in_order)

    def __len__(self) -> int:
        return len(self._ids_in_order)

    def __repr__(self) -> str:
        return f"<ClientDatasets of {self._dataset!r} by {self._column!r}>"
