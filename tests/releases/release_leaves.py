"""Leaf functions for clients and workers of any release; they travel by reference."""

import socket

import federated_language as fl
import numpy as np

import fedstack

MODEL = fl.TensorType(np.float32, [50_000])
WALL = 60.0


@fedstack.python_computation([MODEL, np.float32], MODEL)
def train(model, step):
    return model + step


@fedstack.python_computation([np.int32], np.int32)
def refuse_two(number):
    if number == 2:
        raise ValueError("not two")
    return number


@fedstack.python_computation([np.int32, np.int32], np.int32)
def wait_at_door(port, number):
    """Returns when somebody at the port closes the door: the other end of the connection."""
    with socket.create_connection(("127.0.0.1", int(port)), timeout=WALL) as door:
        door.recv(1)
    return number
