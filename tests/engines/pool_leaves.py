"""Functions of clients that do something to the process they run in; those at the top of a module go by reference."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import federated_language as fl
import numpy as np

import fedstack

INT = fl.TensorType(np.int32)
LIMIT = 90.0


def total_of(function) -> object:
    """Returns the computation that maps a function over clients, and adds up what they return."""
    leaf = fedstack.python_computation(INT, INT)(function)

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(leaf, values))

    return total


def doubled(value):
    return 2 * value


def ends_at_three(value):
    if value == 3:
        os._exit(7)
    return value


def raises_exit(value):
    sys.exit(f"at {value}")


def ending_once(flag: Path):
    """Returns a computation whose client 3 ends its process the first time."""

    def ends_once(value):
        if value == 3 and not flag.exists():
            flag.touch()
            os._exit(7)
        return value

    return total_of(ends_once)


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until something is true."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "it never became true"
        time.sleep(0.01)


def wait_for(file: Path) -> None:
    """Waits until a file is there."""
    wait_until(file.exists)


def noting(folder: Path):
    """Returns a computation whose clients take 10 ms and note that they have run; one of them ends its process once."""

    def notes(value):
        time.sleep(0.01)
        with (folder / str(value % 1000)).open("a") as runs:
            runs.write(".")
        if value == 1180 and not (folder / "ended").exists():
            (folder / "ended").touch()
            os._exit(7)
        return value

    return total_of(notes)


MODEL = fl.TensorType(np.float32, [1 << 19])


@fedstack.python_computation([np.float32, MODEL], np.float32)
def distance(value, model):
    time.sleep(0.01)
    return np.float32(np.abs(model - value).sum())


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS), fl.FederatedType(MODEL, fl.SERVER))
def mean_distance(values, model):
    return fl.federated_mean(fl.federated_map(distance, (values, fl.federated_broadcast(model))))
