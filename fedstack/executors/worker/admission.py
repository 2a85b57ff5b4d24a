"""Lets in what another process sends, and loads the functions in it before they are needed."""

from collections.abc import Iterable, Sequence

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
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.off_loop import LOOP_BYTES, off_loop, sized
from fedstack.foundations.number_checks import MOST_BYTES

_LOADING_THREADS = 4


class Admission:
    """Lets in the leaves that a policy allows. It has no limits on sizes; a service adds its own.

    Args:
      policy: Which leaves others may bring.

    Attributes:
      leaves: Those that have been loaded.
      scope: The scope of work for those who send.
    """

    def __init__(self, policy: CarrierPolicy) -> None:
        self.policy = policy
        self.leaves = LoadedLeaves(policy)
        self.scope = WorkScope(policy=policy, leaves=self.leaves)
        self._loading = LeafThreads(_LOADING_THREADS)

    async def admit(self, computation: computation_pb2.Computation, size: int) -> None:
        """Checks a computation and loads its functions; what cannot be loaded is refused when it is used.

        Args:
          computation: The computation.
          size: Its bytes, or those of a message that it is in.
        """
        if size <= LOOP_BYTES and needs_runtime_import(computation):
            leaves = await off_loop(lambda: self.check(computation))
        else:
            leaves = await sized(size, lambda: self.check(computation))
        await self.load(leaves)

    def check(self, computation: computation_pb2.Computation) -> Sequence[computation_pb2.Computation]:
        """Checks what a computation brings, and returns the leaves in it that are to be loaded.

        Raises:
          CarrierError: If the policy does not allow a leaf.
        """
        check_received(computation, self.policy)
        return leaves_to_load(computation, self.leaves)

    async def load(self, leaves: Sequence[computation_pb2.Computation]) -> None:
        """Loads leaves on a thread, in the scope of the current work: they may import anything, and others wait."""
        if leaves:
            await self._loading.run(lambda: [self.leaves.prepare(leaf) for leaf in leaves])

    def differing_modules(self, computations: Iterable[computation_pb2.Computation]) -> Sequence[str]:
        """Lists the modules of functions in computations of which the sender has another version."""
        return differing_modules(computations, self.leaves)

    def check_clients(self, clients: int) -> None:
        """Checks the number of clients of a session or phase."""

    def check_size(self, size: int, spare: int = 0) -> None:
        """Checks the size of a value or phase.

        Args:
          size: The bytes of its values as they were sent.
          spare: How many of these may be something else, such as dtypes and shapes.
        """

    @property
    def max_bytes(self) -> int:
        """The most bytes of arrays that may come with one message."""
        return MOST_BYTES

    def close(self) -> None:
        """Lets the threads end. Idempotent."""
        self._loading.close()
