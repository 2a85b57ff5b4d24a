"""Caches the plans of computations: each is traced once per content, and found by identity first."""

from fedstack.computations.leaves.leaf_runtimes import digest_of
from fedstack.computations.plan.graph import Function, IntrinsicCall
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.language import computation_pb2
from fedstack.foundations.caches import SharedCache, made_once

_MAX_PLANS = 1000
# Plans reference the contents of their computations: large literals, and the code of received functions, both as a
# message and loaded.
_MAX_BYTES = 128 << 20
# A node, and its parts of a schedule.
_NODE_BYTES = 1300


class PlanCache:
    """A bounded cache of traced computations, for any number of threads."""

    def __init__(self, max_plans: int = _MAX_PLANS, max_bytes: int = _MAX_BYTES) -> None:
        # With the computation, so that no other object gets its identity.
        self._by_identity: SharedCache[int, tuple[computation_pb2.Computation, Function]] = SharedCache(
            max_plans, max_bytes
        )
        self._by_content: SharedCache[bytes, Function] = SharedCache(max_plans, max_bytes)

    def knows(self, computation: computation_pb2.Computation) -> bool:
        """Returns whether the plan of this message object is cached."""
        return self._by_identity.get(id(computation)) is not None

    def knows_content(self, computation: computation_pb2.Computation) -> bool:
        """Returns whether the plan of an equal message is cached."""
        digest, _ = digest_of(computation)
        return self._by_content.get(digest) is not None

    def plan(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation.

        Raises:
          InvalidComputationError: If it is malformed; the error is not cached.
        """
        known = self._by_identity.get(id(computation))
        if known is not None:
            return known[1]
        function = self.plan_content(computation)
        self._by_identity.put(id(computation), (computation, function), computation.ByteSize() + _bytes_of(function))
        return function

    def plan_content(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation without caching the message object, for messages that are received."""
        digest, size = digest_of(computation)
        function = self._by_content.get(digest)
        if function is None:
            function = trace(computation)
            self._by_content.put(digest, function, size + _bytes_of(function))
        return function

    def __len__(self) -> int:
        return len(self._by_content)


@made_once
def _bytes_of(function: Function) -> int:
    """Returns about how many bytes a plan takes besides its message: small computations may unfold to large plans."""
    inner = [called for node in function.nodes if isinstance(node, IntrinsicCall) for called in node.functions]
    return len(function.nodes) * _NODE_BYTES + sum(map(_bytes_of, inner))


plans = PlanCache()
