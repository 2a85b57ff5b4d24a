"""Counts the calls that cross modules in one sum over two clients at a worker: `python -m benchmarks.module_calls`.

The worker is a server in this process, so that one trace has both sides. Everything has been used once before, so that
the trace has what each call does, and not what only the first does. A coroutine counts where it begins, however often
it is resumed; what an event loop or a thread calls counts as called by nothing of fedstack's.
"""

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import federated_language as fl
import numpy as np

import fedstack

_PACKAGE = f"{Path(fedstack.__file__).parent}/"
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_ROUNDS = 5


class ModuleCalls:
    """Counts calls from one module of fedstack into another, on all threads that start after this is made."""

    def __init__(self) -> None:
        self._begun: dict[Any, int] = {}
        self._calls: Counter[tuple[str, str]] | None = None
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    @contextmanager
    def counted(self) -> Iterator[Counter[tuple[str, str]]]:
        """Counts calls during the block, by the modules of caller and called."""
        self._calls = found = Counter[tuple[str, str]]()
        try:
            yield found
        finally:
            self._calls = None

    def close(self) -> None:
        """Counts no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        calls = self._calls
        if calls is None or event != "call" or not frame.f_code.co_filename.startswith(_PACKAGE):
            return
        if frame.f_code.co_flags & _COROUTINE and frame.f_lasti > self._beginning(frame):
            return
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(_PACKAGE):
            called = frame.f_code.co_filename
            if called != caller.f_code.co_filename:
                calls[caller.f_code.co_filename[len(_PACKAGE) :], called[len(_PACKAGE) :]] += 1

    def _beginning(self, frame: FrameType) -> int:
        """Returns the last instruction that a coroutine has done when its body begins."""
        # The first time that a code runs is its beginning, since all of it was used once before the count.
        return self._begun.setdefault(frame.f_code, frame.f_lasti)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def total(values: object) -> object:
    """Adds up what the clients have."""
    return fl.federated_sum(values)


def main() -> None:
    """Prints the calls of the round that has fewest: which thread does what differs from round to round."""
    counts = ModuleCalls()
    from fedstack.service import ExecutorService, GrpcServer, ServerThread

    server = ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory())], port=0))
    rounds: list[Counter[tuple[str, str]]] = []
    with server, fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
        for _ in range(_ROUNDS):
            with counts.counted() as found:
                assert total([np.float32(1), np.float32(2)]) == 3
            rounds.append(found)
    counts.close()
    fewest = min(rounds[1:], key=Counter.total)
    for (caller, called), calls in fewest.most_common(20):
        print(f"{calls:5} {caller} -> {called}")
    modules = {module for pair in fewest for module in pair}
    print(f"{fewest.total()} calls between {len(modules)} modules (rounds: {[found.total() for found in rounds]})")


if __name__ == "__main__":
    main()
