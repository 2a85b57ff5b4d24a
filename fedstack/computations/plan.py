"""Keeps the plans of computations: each is traced once per content, and found by identity first."""

import hashlib
import threading
from collections import OrderedDict

from fedstack.computations.graph import Function
from fedstack.computations.language import computation_pb2
from fedstack.computations.trace import trace

_MAX_PLANS = 1000


class PlanCache:
    """A bounded cache of traced computations, for any number of threads."""

    def __init__(self, max_plans: int = _MAX_PLANS) -> None:
        self._max_plans = max_plans
        self._lock = threading.Lock()
        # The computation is kept beside its plan: as long as it is, nothing else has its identity.
        self._by_identity: OrderedDict[int, tuple[computation_pb2.Computation, Function]] = OrderedDict()
        self._by_content: OrderedDict[bytes, Function] = OrderedDict()

    def plan(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation.

        Raises:
          InvalidComputationError: If it is malformed; the error is not kept.
        """
        with self._lock:
            known = self._by_identity.get(id(computation))
            if known is not None:
                self._by_identity.move_to_end(id(computation))
                return known[1]
        function = self.plan_content(computation)
        with self._lock:
            self._by_identity[id(computation)] = (computation, function)
            while len(self._by_identity) > self._max_plans:
                self._by_identity.popitem(last=False)
        return function

    def plan_content(self, computation: computation_pb2.Computation) -> Function:
        """Returns the traced computation, without keeping the message: for one that was received, and comes once."""
        digest = hashlib.sha256(computation.SerializeToString(deterministic=True)).digest()
        with self._lock:
            function = self._by_content.get(digest)
        if function is None:
            function = trace(computation)
        with self._lock:
            self._by_content[digest] = function
            self._by_content.move_to_end(digest)
            while len(self._by_content) > self._max_plans:
                self._by_content.popitem(last=False)
        return function

    def __len__(self) -> int:
        return len(self._by_content)


plans = PlanCache()
