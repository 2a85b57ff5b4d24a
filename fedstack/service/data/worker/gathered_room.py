"""Bounds what the steps of all streams of a data worker gather together."""

import threading

from fedstack.service.host.limits import DataWorkerLimits, exceeded


class GatheredRoom:
    """Room for what steps gather or hold open, in bytes.

    Args:
      limits: Say how much there is.

    Attributes:
      taken: How much of it is taken.
    """

    def __init__(self, limits: DataWorkerLimits) -> None:
        self._limits = limits
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, size: int, what: str) -> None:
        """Takes room for a step; gives it back for a negative number.

        Raises:
          ResourceLimitError: If there is not so much.
        """
        with self._lock:
            if size > 0 and self.taken + size > self._limits.max_gathered_bytes:
                found = f"{size} more for {what}, beside {self.taken} that are gathered"
                raise exceeded(
                    self._limits,
                    "max_gathered_bytes",
                    found,
                    "let the step hold less: a smaller number, smaller elements",
                )
            self.taken += size

    def __repr__(self) -> str:
        return f"<GatheredRoom: {self.taken} of {self._limits.max_gathered_bytes} bytes taken>"
