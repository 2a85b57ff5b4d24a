"""What all partitioners share: one method, and one source of randomness."""

from abc import ABC, abstractmethod
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_data import frozen_arrays
from fedstack.data.partition.partition import Partition
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import Validator, checked_seed, whole_number_validator

clients_field: Any = attrs.field(validator=whole_number_validator(1))


def one_of(*known: str) -> Validator:
    """Returns an attrs validator that raises InvalidValueError for any other value."""

    def validate(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in known:
            raise InvalidValueError(f"Expected {attribute.name} to be one of {', '.join(known)}, found {value!r}")

    return validate


class Partitioner(ABC):
    """A rule that divides the rows of a data set among clients.

    A partitioner has only options. Each row gets exactly one client, and the same seed, data and options give the same
    partition on every platform with the same version of NumPy.
    """

    __slots__ = ()

    def partition(self, data: object, seed: int = 0) -> Partition:
        """Divides rows among clients.

        Args:
          data: The rows: a table, whose column `partition_by` is read, or, if `partition_by` is `None`, that column
            itself. A table is a mapping from names to columns, a data frame of pandas or polars, or an Arrow table.
            If rows are divided without a column, arrays in any containers will do.
          seed: A non-negative integer. `PCG64` draws all random numbers from it.

        Raises:
          TypeMismatchError: If `data` is of another type, or `seed` is not an integer.
          InvalidValueError: If the rows cannot be divided by this rule, the column is missing, or a value in it is
            missing or NaN.
        """
        # The generator is named, because NumPy may choose another one for default_rng() in a later version.
        random = np.random.Generator(np.random.PCG64(checked_seed("seed", seed)))
        owners, client_ids = self._divide(data, random)
        return Partition(owners, client_ids)

    @abstractmethod
    def _divide(self, data: object, random: np.random.Generator) -> tuple[NDArray[np.intp], "range | list[Any]"]:
        """Returns the client of each row, and the ids of the clients."""

    @property
    def _name(self) -> str:
        return type(self).__name__


def rows_in(data: object, where: str) -> int:
    """Returns the number of rows of arrays in any containers, of a table, or of a column."""
    return frozen_arrays(data, where)[1]


def check_enough_rows(clients: int, rows: int, where: str) -> None:
    """Checks that each client can have a row.

    Raises:
      InvalidValueError: If there are fewer rows than clients.
    """
    if clients > rows:
        raise InvalidValueError(
            f"Expected at least one row for each of {counted(clients, 'client')} of {where}, found "
            f"{counted(rows, 'row')}; use fewer clients"
        )


def even_sizes(rows: int, parts: int) -> NDArray[np.intp]:
    """Returns the sizes of parts of equal size, `intp[parts]`. If the rows do not suffice, the last have one less."""
    return rows // parts + (np.arange(parts) < rows % parts)
