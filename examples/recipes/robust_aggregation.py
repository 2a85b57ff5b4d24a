"""Median, trimmed mean and multi-Krum against clients that attack (Yin et al., 2018; Blanchard et al., 2017).

Clients return how training changed the model, attackers -10 times that; the server combines the list of n changes.
Median and trimmed mean look at each weight alone. For f attackers, Krum sums each change's squared distances to its
n - f - 2 nearest ones; multi-Krum is the mean of the n - f changes with the least sums. It needs 2 f + 2 < n.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser(description="Robust aggregation")
parser.add_argument("--rounds", type=int, default=30, help="how many rounds (%(default)s)")
parser.add_argument("--attackers", type=int, default=6, choices=range(14), help="of 30 clients (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")

x, y = np.float32(np.insert(load_digits().data / 16, 0, 1, axis=1)), np.int32(load_digits().target)
test, train = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
clients = DirichletPartitioner(30, alpha=0.3).partition(y[train], options.seed).split({"x": x[train], "y": y[train]})
clients = [{**rows, "sign": np.float32(-10 if k < options.attackers else 1)} for k, rows in enumerate(clients)]
MODEL, ROWS = (np.float32, [65, 10]), {"x": (np.float32, [None, 65]), "y": (np.int32, [None]), "sign": np.float32}


@fedstack.python_computation([MODEL, ROWS], MODEL)
def change_of_client(model, rows):
    start = model
    for _ in range(5):  # steps down the slope of the cross entropy
        odds = np.exp(rows["x"] @ model - (rows["x"] @ model).max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - np.float32(0.4 / len(error)) * rows["x"].T @ error
    return rows["sign"] * (model - start)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def collect(model, clients):  # returns a list
    return fl.federated_map(change_of_client, (fl.federated_broadcast(model), clients))


def trimmed_mean(changes, axis, f=options.attackers):
    return np.sort(changes, axis)[f : len(changes) - f].mean(axis)


def multi_krum(changes, axis, f=options.attackers):
    sums = [np.sort(((changes - change) ** 2).sum(axis=(1, 2)))[: len(changes) - f - 1].sum() for change in changes]
    return changes[np.argsort(sums)[: len(changes) - f]].mean(axis)


fedstack.set_sync_local_execution_context()
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
for rule in (np.mean, np.median, trimmed_mean, multi_krum):
    model, curve = np.zeros((65, 10), np.float32), []
    for _ in range(options.rounds):
        model = model + rule(np.stack(collect(model, clients)), axis=0)
        curve.append(np.mean((x[test] @ model).argmax(axis=1) == y[test]))
    axes.plot(range(1, len(curve) + 1), curve, label=rule.__name__)
axes.legend()
final = ", ".join(f"{line.get_label()} {line.get_ydata()[-1]:.2f}" for line in axes.lines)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "robust_aggregation.svg")
print(f"accuracy after {options.rounds} rounds with {options.attackers} attackers of 30: {final}\npicture: {picture}")
