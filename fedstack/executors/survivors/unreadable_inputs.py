"""Finds the clients whose inputs cannot be read when they are to be sent, for example because a file is missing."""

from collections.abc import Mapping, Sequence

from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError
from fedstack.executors.survivors.tolerance import Tolerance, is_own
from fedstack.foundations.traceback_filter import without_frames
from fedstack.proto.extensions_pb2 import PhaseRequest


class UnreadableInputsError(FedstackError):
    """Raised if inputs of clients that may fail cannot be read in order to be sent. Not seen by users.

    Attributes:
      by_client: The errors of the clients whose inputs cannot be read, by client.
    """

    by_client: Mapping[int, FedstackError] = {}


def error_of_inputs(
    error: FedstackError, inputs: Sequence[object], types: Sequence[Type], clients: range
) -> FedstackError:
    """Returns the error to raise if inputs of clients cannot be read in order to be sent.

    If the clients may fail, each of them is read alone, and the error names those whose inputs cannot be read.

    Args:
      error: The first error.
      inputs: A column of exactly the given clients for each input.
      types: The type of each input.
      clients: The clients.
    """
    tolerance = current_scope().of(Tolerance)
    if tolerance is None:
        return error
    errors: dict[int, FedstackError] = {}
    for index, client in enumerate(clients):
        try:
            for column, member in zip(inputs, types):
                if isinstance(column, Column):
                    alone = column.slice(index, index + 1).here()
                    Packer().pack_column(PhaseRequest.Input().value, alone, member, "an input")
        except FedstackError as found:
            found.client_index = client  # the values are the client's own, wherever they are
            if not is_own(found):
                return error
            errors[client] = without_frames(found)
    if not errors:
        return error
    unreadable = UnreadableInputsError(str(error))
    unreadable.by_client = errors
    return unreadable
