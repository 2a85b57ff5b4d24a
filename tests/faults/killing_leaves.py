"""Functions that end the process they run in. Workers import this module, so they travel by reference."""

import ctypes
import os

import federated_language as fl
import numpy as np
from fault_leaves import wait_at

import fedstack

CLIENT_INTS = fl.FederatedType(np.int32, fl.CLIENTS)
KILLER = 13
_seen = set[int]()


def die_of(x, *killers):
    if x in killers:
        ctypes.string_at(0)
    return x


@fedstack.python_computation([np.int32], np.int32)
def crash(x):
    return die_of(x, KILLER)


@fedstack.python_computation([np.int32], np.int32)
def crash_at_two(x):
    return die_of(x, 3, 7)


@fedstack.python_computation([np.int32], np.int32)
def crash_always(x):
    return die_of(x, int(x))


@fedstack.python_computation([np.int32], np.int32)
def leave(x):
    if x == KILLER:
        os._exit(3)
    return x


@fedstack.python_computation([np.int32], np.int32)
def leave_together(x):
    """Ends a process in which clients 2 and 3 have run."""
    _seen.add(int(x))
    if {2, 3} <= _seen:
        os._exit(4)
    return x


@fedstack.python_computation([np.int32, np.int32], np.int32)
def crash_of_both(x, total):
    return die_of(x, KILLER) + total


@fedstack.python_computation([np.int32, np.int32], np.int32)
def visit_by(port, x):
    wait_at(port)
    return x


def total_of(leaf):
    """Returns the computation that sums what a function yields at the clients."""

    @fl.federated_computation(CLIENT_INTS)
    def total(xs):
        return fl.federated_sum(fl.federated_map(leaf, xs))

    return total


@fl.federated_computation(CLIENT_INTS)
def two_phases(xs):
    total = fl.federated_broadcast(fl.federated_sum(xs))
    return fl.federated_sum(fl.federated_map(crash_of_both, (xs, total)))


def of_a_function_by_value():
    """Returns the same as `total_of(crash)` with a function that nobody can import."""

    @fedstack.python_computation([np.int32], np.int32)
    def crash(x):
        if x == 13:
            import ctypes

            ctypes.string_at(0)
        return x

    return total_of(crash)
