"""Defines the segments of a parcel that a transport can write directly into the memory of their receiver."""

import abc
from collections.abc import Callable, Sequence

from fedstack.errors import FedstackError


class Body(abc.ABC):
    """The segments of a parcel that is being received.

    Attributes:
      left: The number of bytes that have not been received.
    """

    left: int

    @abc.abstractmethod
    async def read_into(self, buffers: Sequence[memoryview]) -> None:
        """Receives the next bytes into buffers, which together must have at most `left` bytes.

        If this coroutine is cancelled, nothing more is written to the buffers, and the body can no longer be read.
        """

    @abc.abstractmethod
    def limit_silence(self, seconds: float, error: Callable[[], FedstackError]) -> None:
        """Makes `read_into` raise an error if no byte is received for a time.

        Args:
          seconds: The time limit.
          error: Returns the error to raise.
        """
