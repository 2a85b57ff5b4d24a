"""Compressed changes: top-k (Stich et al., 2018) and 8-bit stochastic quantisation (QSGD, Alistarh et al., 2017).

Client k sends c(u_k + e_k) for its change u_k of the model, and keeps the error in `fedstack.ClientStates`: e_k := u_k
+ e_k - c(u_k + e_k). c rounds to 255 levels, at random so that it is right on average, or keeps the 5 % largest.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
x, y = np.float32(np.insert(load_digits().data / 16, 0, 1, axis=1)), np.int32(load_digits().target)
test, train = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
clients = DirichletPartitioner(20, alpha=0.3).partition(y[train], options.seed).split({"x": x[train], "y": y[train]})
MODEL, ROWS = (np.float32, [650]), {"x": (np.float32, [None, 65]), "y": (np.int32, [None]), "codec": np.str_}


def compressed(change, codec):  # returns what the server reads, and how many bytes are sent
    if codec == b"top 5 %":
        return np.where(np.abs(change) >= np.sort(np.abs(change))[-33], change, 0), 33 * (4 + 2)  # values and places
    if codec == b"8 bits":
        scale, random = np.abs(change).max() / 127 + np.float32(1e-9), np.random.default_rng(change.view(np.uint32))
        return np.floor(change / scale + random.random(650, np.float32)) * scale, 650 + 4
    return change, 4 * 650


@fedstack.python_computation([MODEL, ROWS, MODEL], [MODEL, np.int32, MODEL])
def train_on_client(start, rows, error):
    model = start
    for _ in range(5):  # steps down the slope of the cross entropy
        wrong = softmax(rows["x"] @ model.reshape(65, 10), axis=1) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - np.float32(0.4 / len(wrong)) * (rows["x"].T @ wrong).ravel()
    sent, size = compressed(model - start + error, rows["codec"])
    return sent, size, model - start + error - sent


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), *(fl.FederatedType(t, fl.CLIENTS) for t in (ROWS, MODEL)))
def train_round(model, clients, errors):
    change, size, errors = fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients, errors))
    return fl.federated_mean(change), fl.federated_sum(size), errors


fedstack.set_sync_local_execution_context()
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="bytes sent", ylabel="held-out accuracy")
for codec in ("32 bits", "8 bits", "top 5 %"):
    model, errors, total, curve = (zero := np.zeros(650, np.float32)), fedstack.ClientStates(like=zero), 0, []
    for _ in range(options.rounds):
        change, sent, left = train_round(model, [{**one, "codec": codec} for one in clients], errors.select(range(20)))
        errors.update(range(20), left)
        model, total = model + change, total + sent
        curve.append((total, np.mean((x[test] @ model.reshape(65, 10)).argmax(axis=1) == y[test])))
    axes.semilogx(*zip(*curve), label=codec)
    print(f"{codec}: accuracy {curve[-1][1]:.2f} after {options.rounds} rounds, with {total:,} bytes from clients")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "compressed_changes.svg")
print("picture:", picture)
