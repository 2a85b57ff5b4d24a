"""An aggregation whose result depends on the order of clients and blocks."""

import federated_language as fl
import numpy as np

import fedstack

FLOAT = fl.TensorType(np.float32)


@fedstack.python_computation([FLOAT, FLOAT], FLOAT)
def mixed(left, right):
    return left * np.float32(0.7) + right


@fedstack.python_computation([FLOAT], FLOAT)
def reported(total):
    return total
