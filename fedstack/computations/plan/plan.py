"""Caches the plans of computations. Each distinct computation is traced once, and looked up by identity first."""

from fedstack.computations.leaves.leaf_runtimes import digest_of
from fedstack.computations.plan.graph import Function, IntrinsicCall
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.language import computation_pb2
from fedstack.foundations.caches import SharedCache, made_once

_MAX_PLANS = 1000
# Plans keep the contents of their computations in memory: large literals, and the code of received functions, both as a
# message and in loaded form.
_MAX_BYTES = 128 << 20
# The approximate size of a node and the corresponding parts of a schedule.
_NODE_BYTES = 1300


class PlanCache:
    """A bounded, thread-safe cache of traced computations."""

    def __init__(self, max_plans: int = _MAX_PLANS, max_bytes: int = _MAX_BYTES) -> None:
        # Entries keep the computation alive, so that no other object can have the same identity.
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
          InvalidComputationError: If the computation is malformed. Errors are not cached.
        """
        known = self._by_identity.get(id(computation))
        if known is not None:
            return known[1]
        function = self.plan_content(computation)
        self._by_identity.put(id(computation), (computation, function), computation.ByteSize() + _bytes_of(function))
        return function

    def plan_content(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation without caching the identity of the message. Used for received messages."""
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
    """Returns the approximate size of a plan, without its message. Small computations can unfold to large plans."""
    inner = [called for node in function.nodes if isinstance(node, IntrinsicCall) for called in node.functions]
    return len(function.nodes) * _NODE_BYTES + sum(map(_bytes_of, inner))


plans = PlanCache()
