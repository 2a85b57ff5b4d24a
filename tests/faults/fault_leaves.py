"""Computations for tests of faults. Workers import this module, so its functions travel by reference."""

import os
import signal
import socket
import struct
import time

import federated_language as fl
import numpy as np

import fedstack

WALL = 60.0
FLOATS = fl.TensorType(np.float32, [None])
MODEL = fl.TensorType(np.float32, [1_000_000])
KNOCK, PID = b"a visitor", struct.Struct("<i")


@fedstack.python_computation([np.float32], np.float32)
def wobble(x):
    return np.float32(np.sin(x) * np.float32(1e3))


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * 2


@fedstack.python_computation([np.int32], np.int32)
def allow_threads(allowed):
    """Lets the process that this runs in start threads or, from 0 on, none."""
    import resource

    if os.geteuid() == 0:
        os.setuid(60_123)  # there is no limit for root
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most if allowed else 0, most))
    return allowed


def wait_at(port):
    """Waits at a door of the test; see `Door`."""
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.settimeout(WALL)
        connection.sendall(KNOCK + PID.pack(os.getpid()))
        connection.recv(1)


@fedstack.python_computation([np.int32, np.float32], np.float32)
def visit(port, x):
    wait_at(port)
    return np.float32(np.sin(x) * np.float32(1e3))


@fedstack.python_computation([np.int32, np.int32], np.int32)
def visit_and_fail(port, x):
    """Fails for positive numbers; those of even ones wait at a door before."""
    if x % 2 == 0:
        wait_at(port)
    if x > 0:
        raise ZeroDivisionError(f"by {x}")
    return x


@fedstack.python_computation([np.int32, np.int32], np.int32)
def visit_or_fail(port, only_at):
    """Waits at a door, in the only process that can; in others it fails. Takes a moment if it is not to wait."""
    if only_at and only_at != os.getpid():
        raise OSError("a file that this process does not have")
    if only_at:
        wait_at(port)
    else:
        time.sleep(0.02)
    return np.int32(1)


@fedstack.python_computation([MODEL], np.float32)
def length_of(model):
    return np.float32(np.sum(model * model))


@fedstack.python_computation([np.float32], MODEL)
def model_of(x):
    return np.arange(MODEL.shape[0], dtype=np.float32) * x


@fedstack.python_computation([np.int32, np.int32], np.int32)
def difference(x, y):
    return x - y


@fedstack.python_computation([np.int32], np.int32)
def fail(x):
    raise ZeroDivisionError(f"by {x}")


CLIENT_FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)


@fl.federated_computation(CLIENT_FLOATS)
def mean_wobble(xs):
    """Sums in float32, where the order shows in the last bits."""
    return fl.federated_mean(fl.federated_map(wobble, xs))


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def doubled_sum(xs):
    return fl.federated_sum(fl.federated_map(double, xs))


@fl.federated_computation(fl.FederatedType(fl.StructType([np.int32, np.int32]), fl.CLIENTS))
def sum_of_visits_or_failures(clients):
    return fl.federated_sum(fl.federated_map(visit_or_fail, clients))


@fl.federated_computation(fl.FederatedType(fl.StructType([np.int32, np.float32]), fl.CLIENTS))
def mean_visit(clients):
    return fl.federated_mean(fl.federated_map(visit, clients))


@fedstack.python_computation([[np.int32, np.float32], MODEL], np.float32)
def visit_beside(visitor, model):
    wait_at(visitor[0])
    return np.float32(np.sin(visitor[1]) * np.float32(1e3) + 0 * model[0])


@fl.federated_computation(
    fl.FederatedType(fl.StructType([np.int32, np.float32]), fl.CLIENTS), fl.FederatedType(MODEL, fl.SERVER)
)
def mean_visit_beside(visitors, model):
    return fl.federated_mean(fl.federated_map(visit_beside, (visitors, fl.federated_broadcast(model))))


@fedstack.python_computation([np.int32], np.float32)
def step_or_end(x):
    """Raises for -1, ends its process for -2, is killed from outside for -3, and takes its time for -4."""
    time.sleep(0.05)
    if x == -4:
        time.sleep(60)
    if x == -1:
        raise ValueError("a failure")
    if x == -2:
        os._exit(3)
    if x == -3:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.float32(np.sin(x) * np.float32(1e3))


@fedstack.python_computation([np.float32, np.float32], np.float32)
def join(state, x):
    return np.float32(state * np.float32(0.5) + x)


@fedstack.python_computation([np.float32], np.float32)
def as_it_is(state):
    return state


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def steps(xs):
    """Folds that depend on the order, a list, and a second phase."""
    found = fl.federated_map(step_or_end, xs)
    joined = fl.federated_aggregate(found, np.float32(0), join, join, as_it_is)
    return fl.federated_mean(found), joined, fl.federated_max(xs), found


@fedstack.python_computation([np.int32], np.int32)
def end_or_not(x):
    if x < 0:
        os._exit(3)
    time.sleep(0.01)
    return x


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def sum_of_those_left(xs):
    """A program that no other test runs, so that nothing is known of it."""
    found = fl.federated_map(end_or_not, xs)
    return fl.federated_sum(found), found


@fl.federated_computation(fl.FederatedType(fl.StructType([np.int32, np.int32]), fl.CLIENTS))
def sum_of_failing_visits(clients):
    return fl.federated_sum(fl.federated_map(visit_and_fail, clients))


@fl.federated_computation(fl.FederatedType(MODEL, fl.CLIENTS))
def mean_length(models):
    """Sends much and gets little back."""
    return fl.federated_mean(fl.federated_map(length_of, models))


@fl.federated_computation(CLIENT_FLOATS)
def models(xs):
    """Sends little and gets much back."""
    return fl.federated_map(model_of, xs)


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def failing_sum(xs):
    return fl.federated_sum(fl.federated_map(fail, xs))
