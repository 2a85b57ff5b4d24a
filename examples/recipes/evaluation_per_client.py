"""Evaluation of each client: a good mean accuracy can hide clients for which the model is bad.

A computation may return a value for each client: here accuracies a_k, beside their mean sum_k n_k a_k / sum_k n_k.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

CLIENTS, STEPS, RATE, MODEL = 30, 10, np.float32(0.3), (np.float32, [64, 10])
ROWS = {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([MODEL, ROWS], {"model": MODEL, "rows": np.float32})
def train_on_client(model, rows):
    for _ in range(STEPS):
        odds = np.exp(rows["x"] @ model)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - RATE * rows["x"].T @ error / np.float32(len(error))
    return {"model": model, "rows": np.float32(len(rows["y"]))}


@fedstack.python_computation([MODEL, ROWS], {"accuracy": np.float32, "rows": np.float32})
def evaluate_on_client(model, rows):
    right = (rows["x"] @ model).argmax(axis=1) == rows["y"]
    return {"accuracy": np.float32(right.mean()), "rows": np.float32(len(right))}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), *[fl.FederatedType(ROWS, fl.CLIENTS)] * 2)
def train_and_evaluate(model, rows, held_out):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), rows))
    model = fl.federated_mean(trained.model, weight=trained.rows)
    found = fl.federated_map(evaluate_on_client, (fl.federated_broadcast(model), held_out))
    return model, fl.federated_mean(found.accuracy, weight=found.rows), found.accuracy


x, y = (array.astype(np.float32) for array in load_digits(return_X_y=True))
split = DirichletPartitioner(CLIENTS, alpha=0.3).partition(y, seed=options.seed)
clients = split.split({"x": x / 16, "y": y.astype(np.int32)})
training, held_out = ([{name: rows[k::2] for name, rows in client.items()} for client in clients] for k in range(2))
fedstack.set_sync_local_execution_context()
model, axes = np.zeros((64, 10), np.float32), Figure(figsize=(6.4, 4), layout="constrained").subplots()
for number in range(1, options.rounds + 1):
    model, mean, each = train_and_evaluate(model, training, held_out)
    if number in (1, 5, options.rounds):
        print(f"round {number}: mean {mean:.2f}, quartiles", np.quantile(each, [0.25, 0.5, 0.75]).round(2))
        axes.plot(np.sort(each), ".-", label=f"round {number}: mean {mean:.2f}")
for k in np.argsort(each)[:3]:
    print(f"client {k}: accuracy {each[k]:.2f} on {len(held_out[k]['y'])} rows of digits {np.unique(held_out[k]['y'])}")
axes.set(xlabel="clients, in the order of their accuracy", ylabel="accuracy on own held-out digits")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "evaluation_per_client.svg")
print(
    f"accuracy {mean:.2f} after {options.rounds} rounds; {min(each):.2f} to {max(each):.2f} for the {CLIENTS} clients"
)
print("picture:", picture)
