"""Keeps the plans of computations: each is traced once per content, and found by identity first."""

from fedstack.computations.leaves.leaf_runtimes import digest_of
from fedstack.computations.plan.graph import Function, IntrinsicCall
from fedstack.computations.plan.made_once import made_once
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.computations.types.language import computation_pb2

_MAX_PLANS = 1000
# Plans keep what is in their computations: large literals, and the code of functions that have come from elsewhere,
# once as a message and once loaded.
_MAX_BYTES = 128 << 20
# A node, and what it becomes in a schedule.
_NODE_BYTES = 1300


class PlanCache:
    """A bounded cache of traced computations, for any number of threads."""

    def __init__(self, max_plans: int = _MAX_PLANS, max_bytes: int = _MAX_BYTES) -> None:
        # The computation is kept beside its plan: as long as it is, nothing else has its identity.
        self._by_identity: SharedCache[int, tuple[computation_pb2.Computation, Function]] = SharedCache(
            max_plans, max_bytes
        )
        self._by_content: SharedCache[bytes, Function] = SharedCache(max_plans, max_bytes)

    def knows(self, computation: computation_pb2.Computation) -> bool:
        """Tells whether this very message has been traced, and its plan is at hand."""
        return self._by_identity.get(id(computation)) is not None

    def knows_content(self, computation: computation_pb2.Computation) -> bool:
        """Tells whether a message like this has been traced, and its plan is at hand."""
        digest, _ = digest_of(computation)
        return self._by_content.get(digest) is not None

    def plan(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation.

        Raises:
          InvalidComputationError: If it is malformed; the error is not kept.
        """
        known = self._by_identity.get(id(computation))
        if known is not None:
            return known[1]
        function = self.plan_content(computation)
        self._by_identity.put(id(computation), (computation, function), computation.ByteSize() + _bytes_of(function))
        return function

    def plan_content(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation, without keeping the message: for one that was received, and comes once."""
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
    """Returns about how much a plan takes beside its message: calls that are unfolded make much of a little."""
    inner = [called for node in function.nodes if isinstance(node, IntrinsicCall) for called in node.functions]
    return len(function.nodes) * _NODE_BYTES + sum(map(_bytes_of, inner))


plans = PlanCache()
