"""FedProx: clients stay close to the global model, and slow ones hand in what they have done (Li et al., 2020).

A client minimises its loss plus mu / 2 |w - w_t|^2, with w_t the global model. Many have time for some of their steps
only: FedAvg leaves them out, FedProx takes what they have done.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

CLIENTS, PER_ROUND, STEPS, RATE, MOMENTUM, SLOW, HIDDEN = 20, 10, 20, np.float32(0.1), np.float32(0.9), 0.7, 32
MODEL, ROWS = [(np.float32, [64, HIDDEN]), (np.float32, [HIDDEN, 10])], [(np.float32, [None, 64]), (np.int32, [None])]
RUNS = {"FedAvg without slow clients": 0.0, "FedAvg with their models": 0.0, "FedProx, mu = 0.1": 0.1}
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out"))
options = parser.parse_args()


@fedstack.python_computation([[MODEL, np.float32], ROWS, np.int32], [MODEL, np.float32])
def train_on_client(given, rows, steps):
    received, mu = given
    model, speeds = list(received), [np.zeros_like(array) for array in received]
    for x, y in [rows] * steps:
        hidden = np.maximum(x @ model[0], 0)
        odds = np.exp(hidden @ model[1])
        error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[y]) / np.float32(len(y))
        slopes = [x.T @ ((error @ model[1].T) * (hidden > 0)), hidden.T @ error]
        speeds = [MOMENTUM * v + slope + mu * (w - w_t) for v, slope, w, w_t in zip(speeds, slopes, model, received)]
        model = [w - RATE * v for w, v in zip(model, speeds)]
    return model, np.float32(len(y))


@fl.federated_computation(
    fl.FederatedType([MODEL, np.float32], fl.SERVER),
    fl.FederatedType(ROWS, fl.CLIENTS),
    fl.FederatedType(np.int32, fl.CLIENTS),
)
def train_round(given, rows, steps):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(given), rows, steps))
    return fl.federated_mean(trained[0], weight=trained[1])


x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32), y.astype(np.int32)
held_out, rest = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
split = DirichletPartitioner(CLIENTS, alpha=0.1, min_partition_size=5).partition(y[rest], seed=options.seed)
clients = split.split((x[rest], y[rest]))
fedstack.set_sync_local_execution_context()
axes, last = Figure(figsize=(6.4, 4), layout="constrained").subplots(), {}
for name, mu in RUNS.items():
    random, curve = np.random.default_rng(options.seed), []
    model = [random.normal(0, 0.2, shape).astype(np.float32) for _, shape in MODEL]
    for _ in range(options.rounds):
        ids, slow = random.choice(CLIENTS, PER_ROUND, replace=False), random.random(PER_ROUND) < SLOW
        steps = np.where(slow, random.integers(1, STEPS, PER_ROUND), STEPS).astype(np.int32)
        kept = np.flatnonzero(~slow) if "without" in name and not slow.all() else range(PER_ROUND)
        model = train_round([model, mu], [clients[ids[k]] for k in kept], [steps[k] for k in kept])
        curve.append(((np.maximum(x[held_out] @ model[0], 0) @ model[1]).argmax(axis=1) == y[held_out]).mean())
    last[name] = np.mean(curve[-10:])
    print(name, *(f"{accuracy:.2f}" for accuracy in curve))
    axes.plot(range(1, options.rounds + 1), curve, ".-", label=name)
axes.legend(title="accuracy on held-out digits, over rounds")
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(options.out / "fedprox.svg")
print(f"accuracy after {options.rounds} rounds (mean of 10):", "; ".join(f"{name} {a:.2f}" for name, a in last.items()))
