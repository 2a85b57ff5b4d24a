"""Interrupts itself while clients run in a pool that looks away from Ctrl-C; takes a folder for signs."""

import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pool_leaves import total_of, wait_for, wait_until

import fedstack
from fedstack.contexts import SyncExecutionContext

SIGNS = Path(sys.argv[1])


def waits(value):
    (SIGNS / f"begun-{value}").touch()
    wait_for(SIGNS / "may-end")
    return value


def interrupt() -> None:
    wait_for(SIGNS / "begun-0")
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    ignoring = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **ignoring) as pool:
        factory = fedstack.pool_executor_factory(pool, 8)
        with SyncExecutionContext(factory):
            threading.Thread(target=interrupt, daemon=True).start()
            try:
                total_of(waits)(list(range(8)))
            except KeyboardInterrupt:
                wait_until(lambda: "cancelled" in repr(factory))  # which the event loop is told
                print("interrupted", factory)
            (SIGNS / "may-end").touch()
            print("then", total_of(lambda value: 3 * value)([1, 2]))
    print("begun", len(list(SIGNS.glob("begun-*"))))
