"""Keeps the plans of computations: each is traced once per content, and found by identity first."""

import hashlib
import threading

from fedstack.computations.bounded_cache import BoundedCache
from fedstack.computations.graph import Function
from fedstack.computations.language import computation_pb2
from fedstack.computations.trace import trace

_MAX_PLANS = 1000
# Plans keep what is in their computations: large literals, and the code of functions that have come from elsewhere.
_MAX_BYTES = 256 << 20


class PlanCache:
    """A bounded cache of traced computations, for any number of threads."""

    def __init__(self, max_plans: int = _MAX_PLANS, max_bytes: int = _MAX_BYTES) -> None:
        self._lock = threading.Lock()
        # The computation is kept beside its plan: as long as it is, nothing else has its identity.
        self._by_identity: BoundedCache[int, tuple[computation_pb2.Computation, Function]] = BoundedCache(
            max_plans, max_bytes
        )
        self._by_content: BoundedCache[bytes, Function] = BoundedCache(max_plans, max_bytes)

    def plan(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation.

        Raises:
          InvalidComputationError: If it is malformed; the error is not kept.
        """
        with self._lock:
            known = self._by_identity.get(id(computation))
            if known is not None:
                return known[1]
        function = self.plan_content(computation)
        with self._lock:
            self._by_identity.put(id(computation), (computation, function), computation.ByteSize())
        return function

    def plan_content(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation, without keeping the message: for one that was received, and comes once."""
        content = computation.SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).digest()
        with self._lock:
            function = self._by_content.get(digest)
        if function is None:
            function = trace(computation)
        with self._lock:
            self._by_content.put(digest, function, len(content))
        return function

    def __len__(self) -> int:
        return len(self._by_content)


plans = PlanCache()
