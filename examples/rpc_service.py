"""A service with two methods, and a client of it: the state of a model stays at the server.

In two terminals:

  python examples/rpc_service.py serve localhost:8500
  python examples/rpc_service.py train localhost:8500

Which comes first does not matter. Any number of clients may train at the same time.
"""

import argparse
import contextlib
import threading

import numpy as np

from fedstack.service import rpc

FEATURES = 4
TRUTH = np.arange(1, FEATURES + 1, dtype=np.float32)
VECTOR = (np.float32, [FEATURES])

parser = argparse.ArgumentParser(description="Fits a line by remote procedure calls.")
parser.add_argument("role", choices=["serve", "train"])
parser.add_argument("address", metavar="ADDRESS", help="host:port; port 0 for any that is free")
parser.add_argument("--steps", type=int, default=200)


class Model:
    """Weights that several clients read and change; methods may be called from several threads at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.weights = np.zeros(FEATURES, np.float32)

    def read(self):
        with self.lock:
            return self.weights.copy()

    def step(self, gradient, rate):
        with self.lock:
            self.weights -= rate * gradient


def serve(address):
    model = Model()
    server = rpc.Server.create("grpc", address)
    server.register("read", model.read, result_type=VECTOR)
    server.register("step", model.step, parameter_types=[VECTOR, np.float32], result_type=())
    with server, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it
        print(f"serving {', '.join(server.methods)} at {server.target}", flush=True)
        server.join()


def train(address, steps):
    random = np.random.default_rng(0)
    with rpc.Client.create("grpc", address) as client:
        for _ in range(steps):
            inputs = random.normal(size=(32, FEATURES)).astype(np.float32)
            errors = inputs @ (client.read_blocking() - TRUTH)
            client.step(inputs.T @ errors / 32, rate=0.1).get_value()
        weights = client.read_blocking()
    print(f"weights {np.round(weights, 2).tolist()} after {steps} steps")


if __name__ == "__main__":
    options = parser.parse_args()
    if options.role == "serve":
        serve(options.address)
    else:
        train(options.address, options.steps)
