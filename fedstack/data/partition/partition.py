"""Says which client has which rows of a data set."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.values.sequences import mapped_arrays, take
from fedstack.data.client_data import Arrays, frozen_arrays
from fedstack.data.partition.labels import labels_of, stable_order
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted


@attrs.frozen(eq=False, repr=False)
class Partition:
    """A division of the rows of a data set among clients: each row has one client.

    `partition[k]` is an array of the indices of the rows of client k, `intp[rows]`, in ascending order and read-only.
    `len(partition)` is the number of clients, and iterating over the partition yields the indices of each client.

    Attributes:
      owners: The client of each row, `intp[rows]`, as a position in `client_ids`. As a column of a table it is what
        `fedstack.by_client` splits by.
      client_ids: The ids of the clients: those in the data for a partition by a column, or else 0, 1, 2 and so on.
      sizes: The number of rows of each client, `intp[clients]`.
    """

    owners: NDArray[np.intp]
    client_ids: Sequence[Any]
    sizes: NDArray[np.intp] = attrs.field(init=False)
    _order: NDArray[np.intp] = attrs.field(init=False)
    _stops: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        made = {
            "sizes": np.bincount(self.owners, minlength=len(self.client_ids)),
            "_order": stable_order(self.owners, len(self.client_ids)),
        }
        made["_stops"] = cast(Any, [0, *np.cumsum(made["sizes"]).tolist()])
        for name, value in made.items():
            object.__setattr__(self, name, value)
        for array in (self.owners, self.sizes, self._order):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.client_ids)

    def __getitem__(self, client: int) -> NDArray[np.intp]:
        position = range(len(self))[client]
        return self._order[self._stops[position] : self._stops[position + 1]]

    def __iter__(self) -> Iterator[NDArray[np.intp]]:
        return (self[client] for client in range(len(self)))

    def split(self, arrays: Arrays) -> list[Any]:
        """Returns each client's rows of arrays, in the order of the clients, as an argument for a computation.

        >>> from fedstack.data.partition import LinearPartitioner
        >>> partition = LinearPartitioner(2).partition([10, 20, 30], seed=1)
        >>> [part["x"].tolist() for part in partition.split({"x": [10, 20, 30]})]
        [[30], [10, 20]]

        Args:
          arrays: An array, nested containers of arrays, or a table, as in `fedstack.batches`, with the rows that were
            partitioned: `dtype[rows, ...]`.

        Returns:
          A list with the containers of `arrays` for each client. The arrays are read-only, `dtype[client's rows, ...]`,
          and the rows keep their order.

        Raises:
          TypeMismatchError: If `arrays` contains a scalar or a masked array.
          InvalidValueError: If the number of rows is another one, or a column lacks a value in a row.
        """
        frozen, rows = frozen_arrays(arrays, "Partition.split")
        self._check_rows(rows, "Partition.split")
        ordered = mapped_arrays(frozen, lambda array: take(array, self._order))
        cuts = [slice(start, stop) for start, stop in zip(self._stops, self._stops[1:])]
        return [mapped_arrays(ordered, lambda array, cut=cut: array[cut]) for cut in cuts]

    def label_counts(self, labels: object) -> tuple[list[Any], NDArray[np.intp]]:
        """Returns how many rows with each label each client has.

        Args:
          labels: The label of each row: a column of numbers, text or other hashable values.

        Returns:
          The sorted labels, and their numbers, `intp[clients, labels]`.

        Raises:
          InvalidValueError: If the number of labels is not the number of rows, or a label is missing or NaN.
        """
        found = labels_of(labels, None, "Partition.label_counts")
        self._check_rows(len(found.codes), "Partition.label_counts")
        pairs = self.owners * len(found.values) + found.codes
        counts = np.bincount(pairs, minlength=len(self) * len(found.values))
        return found.values, counts.reshape(len(self), len(found.values))

    def _check_rows(self, rows: int, where: str) -> None:
        if rows != len(self.owners):
            raise InvalidValueError(
                f"Expected {counted(len(self.owners), 'row')} for {where}, as in the data that was partitioned, found "
                f"{rows}; pass the same rows in the same order"
            )

    def __repr__(self) -> str:
        rows, clients = counted(len(self.owners), "row"), counted(len(self), "client")
        return f"<Partition of {rows} among {clients}, {self.sizes.min()} to {self.sizes.max()} each>"
