"""FedAdam and FedYogi: the server takes adaptive steps (Reddi et al., 2021), against FedAvg.

The mean change d of the clients' models is the server's gradient: m = 0.9 m + 0.1 d, x = x + a m / (sqrt(v) + t), where
FedAdam has v = 0.99 v + 0.01 d^2, and FedYogi v = v - 0.01 d^2 sign(v - d^2). FedAvg is x = x + d.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

CLIENTS, PER_ROUND, STEPS, RATE, BATCH = 20, 10, 5, np.float32(0.1), 16
SERVER_RATE, TAU = np.float32(0.1), np.float32(1e-3)
MODEL, ROWS = (np.float32, [64, 10]), {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([MODEL, fl.SequenceType(ROWS)], {"change": MODEL, "rows": np.float32})
def train_on_client(start, batches):
    model, rows = start, 0
    for batch, _ in zip(batches, range(STEPS)):
        odds = np.exp(batch["x"] @ model)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[batch["y"]]
        model, rows = model - RATE * batch["x"].T @ error / np.float32(len(error)), rows + len(error)
    return {"change": model - start, "rows": np.float32(rows)}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(fl.SequenceType(ROWS), fl.CLIENTS))
def mean_change(model, batches):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), batches))
    return fl.federated_mean(trained.change, weight=trained.rows)


x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32), y.astype(np.int32)
held_out, rest = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
split = DirichletPartitioner(CLIENTS, alpha=0.3).partition(y[rest], seed=options.seed)
clients = split.split({"x": x[rest], "y": y[rest]})
fedstack.set_sync_local_execution_context()
axes, last = Figure(figsize=(6.4, 4), layout="constrained").subplots(), {}
for name in ("FedAvg", "FedAdam", "FedYogi"):
    model, momentum, curve = *np.zeros((2, 64, 10), np.float32), []
    squares = np.full_like(model, TAU**2)
    for number in range(options.rounds):
        ids = np.random.default_rng([options.seed, number]).choice(CLIENTS, PER_ROUND, replace=False)
        change = mean_change(model, [fedstack.batches(clients[k], BATCH, shuffle_seed=k, round=number) for k in ids])
        momentum, square = 0.9 * momentum + 0.1 * change, change**2
        squares += 0.01 * (square - squares if name == "FedAdam" else square * np.sign(square - squares))
        model += change if name == "FedAvg" else SERVER_RATE * momentum / (np.sqrt(squares) + TAU)
        curve.append(((x[held_out] @ model).argmax(axis=1) == y[held_out]).mean())
    last[name] = f"{np.mean(curve[-5:]):.2f}"
    print(name, *(f"{accuracy:.2f}" for accuracy in curve))
    axes.plot(range(1, options.rounds + 1), curve, ".--" if name == "FedYogi" else ".-", label=name)
axes.set(xlabel="round", ylabel="accuracy on held-out digits")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "fedadam.svg")
found = "; ".join(f"{name} {accuracy}" for name, accuracy in last.items())
print(f"accuracy after {options.rounds} rounds (mean of 5): {found}\npicture: {picture}")
