"""Receives messages and arrays from other processes, and checks and loads the functions in these messages."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import attrs
from google.protobuf.message import Message

from fedstack.computations.codec.stored_values import StoreFolders
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.leaves.portability import (
    check_received,
    differing_modules,
    leaves_to_load,
    needs_runtime_import,
)
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.types.language import computation_pb2
from fedstack.executors.concurrency.leaf_threads import (
    LOOP_BYTES,
    LOOP_COPY_BYTES,
    LeafThreads,
    off_loop,
    read_message,
    sized,
)
from fedstack.foundations.number_checks import MOST_BYTES
from fedstack.transport.wire.parcels import Incoming

_M = TypeVar("_M", bound=Message)


@attrs.frozen
class Received(Generic[_M]):
    """A received message whose arrays have not been read yet.

    Attributes:
      message: The message.
      size: The size of the message in bytes.
      rest: The source of the bytes of the arrays.
    """

    message: _M
    size: int
    rest: Incoming

    async def fill(self, unpacker: Unpacker) -> None:
        """Reads the bytes of the arrays into the buffers of an unpacker.

        Raises:
          InvalidValueError: If the number of bytes differs from the number that the message announced.
        """
        await self.fill_next(unpacker)
        await self.end()

    async def fill_next(self, unpacker: Unpacker) -> None:
        """Reads the bytes for one of several unpackers. Call `end` after the last unpacker."""
        if not unpacker.buffers:
            unpacker.finish()
            return
        size = sum(map(len, unpacker.buffers))
        await self.rest.read_next(unpacker.buffers)
        await sized(size, unpacker.finish, LOOP_COPY_BYTES)

    async def end(self) -> None:
        """Checks that all bytes have been read.

        Raises:
          InvalidValueError: If further bytes follow.
        """
        await self.rest.read_into(())


async def receive(incoming: Incoming, message: type[_M]) -> Received[_M]:
    """Reads the message of a parcel.

    Raises:
      InvalidValueError: If the header is not a message of this type.
    """
    header = await incoming.header()
    return Received(await read_message(message, header), len(header), incoming)


_LOADING_THREADS = 4


class Admission:
    """Checks received computations, and accepts only leaf computations that a policy allows.

    This base class does not limit sizes; services add limits in subclasses.

    Args:
      policy: The policy that determines which leaf computations senders may use.

    Attributes:
      leaves: The loaded leaf computations.
      scope: The scope in which the work of senders runs.
      stores: The stores of clients' states that the work of senders may use; `None` for none.
    """

    def __init__(self, policy: CarrierPolicy) -> None:
        self.policy = policy
        self.leaves = LoadedLeaves(policy)
        self.scope = WorkScope(policy=policy, leaves=self.leaves)
        self.stores: StoreFolders | None = None
        self._loading = LeafThreads(_LOADING_THREADS)

    async def admit(self, computation: computation_pb2.Computation, size: int) -> None:
        """Checks a computation and loads its functions. A function that cannot be loaded fails when it is used.

        Args:
          computation: The computation.
          size: The size of the computation or of the message that contains it, in bytes.

        Raises:
          CarrierError: If the policy does not allow a leaf.
        """
        if size <= LOOP_BYTES and needs_runtime_import(computation):
            leaves = await off_loop(lambda: self.check(computation))
        else:
            leaves = await sized(size, lambda: self.check(computation))
        await self.load(leaves)

    def check(self, computation: computation_pb2.Computation) -> Sequence[computation_pb2.Computation]:
        """Checks the leaves of a computation, and returns the leaves that have to be loaded.

        Raises:
          CarrierError: If the policy does not allow a leaf.
        """
        check_received(computation, self.policy)
        return leaves_to_load(computation, self.leaves)

    async def load(self, leaves: Sequence[computation_pb2.Computation]) -> None:
        """Loads leaves on a thread, in the current scope. Loading may import modules, which takes time."""
        if leaves:
            await self._loading.run(lambda: [self.leaves.prepare(leaf) for leaf in leaves])

    def differing_modules(self, computations: Iterable[computation_pb2.Computation]) -> Sequence[str]:
        """Returns the names of modules that the computations use and that the sender has in a different version."""
        return differing_modules(computations, self.leaves)

    def check_clients(self, clients: int) -> None:
        """Checks the number of clients of a session or phase."""

    def check_size(self, size: int, spare: int = 0) -> None:
        """Checks the size of a value or phase.

        Args:
          size: The number of bytes of the values in their serialized form.
          spare: The number of these bytes that may belong to dtypes, shapes and similar metadata.
        """

    @property
    def max_bytes(self) -> int:
        """The maximum number of bytes of arrays that a message may contain."""
        return MOST_BYTES

    def close(self) -> None:
        """Stops the threads that load leaf computations. Idempotent."""
        self._loading.close()
