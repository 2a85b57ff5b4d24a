"""Computations for tests over Ray."""

import os
import signal
import time
from pathlib import Path

import federated_language as fl
import numpy as np

import fedstack

ROW = (np.float64, [5000])
# What tests wait for comes at some time, unless something is wrong.
PATIENCE_SECONDS = 60


@fedstack.python_computation([ROW, ROW], ROW)
def add(model, row):
    return model + row


@fl.federated_computation(fl.FederatedType(ROW, fl.SERVER), fl.FederatedType(ROW, fl.CLIENTS))
def average(model, rows):
    return fl.federated_mean(fl.federated_map(add, (fl.federated_broadcast(model), rows)))


@fedstack.python_computation([ROW], ROW)
def itself(row):
    return row.copy()


@fl.federated_computation(fl.FederatedType(ROW, fl.CLIENTS))
def same(rows):
    return fl.federated_map(itself, rows)


@fedstack.python_computation([np.int32], np.int32)
def process(_):
    return os.getpid()


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def processes(numbers):
    return fl.federated_map(process, numbers)


@fedstack.python_computation([np.int32], np.int32)
def not_seven(number):
    if number == 7:
        raise ValueError("it is 7")
    return number


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def checked(numbers):
    return fl.federated_sum(fl.federated_map(not_seven, numbers))


@fedstack.python_computation([np.str_, np.int32], np.int32)
def ends_once(folder, number):
    """Ends its process, the first time that it runs at client 5."""
    mark = Path(folder.decode()) / "ended"
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@fl.federated_computation(fl.FederatedType(np.str_, fl.SERVER), fl.FederatedType(np.int32, fl.CLIENTS))
def survives(folder, numbers):
    return fl.federated_sum(fl.federated_map(ends_once, (fl.federated_broadcast(folder), numbers)))


@fedstack.python_computation([np.int32], np.int32)
def ends(number):
    if number == 5:
        os._exit(1)
    return number


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def ends_always(numbers):
    return fl.federated_sum(fl.federated_map(ends, numbers))


def be_held_up(folder: bytes) -> None:
    """Says that this process is there, and waits until it is let go."""
    (Path(folder.decode()) / f"here-{os.getpid()}").touch()
    end = time.monotonic() + PATIENCE_SECONDS
    while not (Path(folder.decode()) / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)


@fedstack.python_computation([np.str_, np.int32], np.int32)
def waits(folder, number):
    be_held_up(folder)
    return number


@fl.federated_computation(fl.FederatedType(np.str_, fl.SERVER), fl.FederatedType(np.int32, fl.CLIENTS))
def held_up(folder, numbers):
    return fl.federated_sum(fl.federated_map(waits, (fl.federated_broadcast(folder), numbers)))


@fedstack.python_computation([np.str_, ROW], ROW)
def waits_with_row(folder, row):
    be_held_up(folder)
    return row.copy()


@fl.federated_computation(fl.FederatedType(np.str_, fl.SERVER), fl.FederatedType(ROW, fl.CLIENTS))
def held_average(folder, rows):
    return fl.federated_mean(fl.federated_map(waits_with_row, (fl.federated_broadcast(folder), rows)))


@fl.federated_computation(fl.FederatedType(np.str_, fl.SERVER), fl.FederatedType(ROW, fl.CLIENTS))
def held_sum(folder, rows):
    return fl.federated_sum(fl.federated_map(waits_with_row, (fl.federated_broadcast(folder), rows)))


def inputs(clients: int) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(5)
    return random.normal(size=5000), list(random.normal(size=(clients, 5000)))


def numbers(count: int) -> list[np.int32]:
    return [np.int32(number) for number in range(count)]


def wait_until(is_so, what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end, f"not within {PATIENCE_SECONDS} s: {what}"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
