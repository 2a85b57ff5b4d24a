"""Defines what a program calls once its executor has bound it: payload in, payload out."""

from fedstack.computations.leaves.column_calls import ColumnCall
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column, column_from_payloads


class BoundOperation:
    """An operation that is ready to run, from several threads at once. What it returns is trusted.

    Attributes:
      name: What messages call it.
      result: The type of what it returns.
      prefers_columns: Whether `call_column` does more than call one by one: then it is used even where results are
        large.
      max_parallel: The most clients of a phase that may run at the same time, for what has one device or one session;
        `None` for any number. Calls at the server and of other invocations are not counted.
      differing_module: The module that it is from, if the version of whoever sent it is another one; else empty.
    """

    name: str
    result: Type
    prefers_columns: bool = False
    max_parallel: int | None = None
    differing_module: str = ""

    def call(self, argument: object, client: int | None = None) -> object:
        """Runs it once.

        Args:
          argument: The payload of its argument; `None` if it takes none.
          client: The index of the client whose work this is, for messages; `None` at the server.
        """
        raise NotImplementedError

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        """Runs it once for each of `size` clients, `first_client` and those after it."""
        arguments = [None] * size if argument is None else argument.items()
        payloads: list[object] = []
        with ColumnCall(first_client, payloads):
            for client, item in enumerate(arguments, first_client):
                payloads.append(self.call(item, client))
        return column_from_payloads(payloads, self.result, list_is_own=True)
