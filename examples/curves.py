"""FedAvg, FedProx, SCAFFOLD, FedAdam and FedYogi on the same digits, over three seeds: `make curves` draws the picture.

One function of clients has all: it steps along g + mu (w - start) + c - c_k, where FedProx has mu > 0 and SCAFFOLD the
controls c and c_k. FedAdam and FedYogi are other steps of the server. The recipes of each algorithm give the sources.
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

SEEDS, STEPS, RATE, TAU, (X, Y) = 3, 10, np.float32(0.5), np.float32(0.001), load_digits(return_X_y=True)
MODEL, ROWS = (np.float32, [64, 10]), {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
GIVEN = [MODEL, MODEL, np.float32]
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([GIVEN, MODEL, ROWS], [MODEL, MODEL])
def train_on_client(given, own, rows):
    (start, control, mu), model = given, given[0]
    for _ in range(STEPS):
        error = softmax(rows["x"] @ model, axis=1) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - RATE * (rows["x"].T @ error / np.float32(len(error)) + mu * (model - start) + control - own)
    return model - start, own - control + (start - model) / (STEPS * RATE)


@fl.federated_computation(fl.FederatedType(GIVEN, fl.SERVER), *(fl.FederatedType(t, fl.CLIENTS) for t in (MODEL, ROWS)))
def train_round(given, own, rows):
    change, own = fl.federated_map(train_on_client, (fl.federated_broadcast(given), own, rows))
    return fl.federated_mean(change), own


def accuracies(name, seed):
    test, rest = np.split(np.random.default_rng(seed).permutation(len(Y)), [360])
    split = DirichletPartitioner(20, alpha=0.1, min_partition_size=5).partition(Y[rest], seed=seed)
    clients = split.split({"x": (X[rest] / 16).astype(np.float32), "y": Y[rest].astype(np.int32)})
    model, control, momentum, square = *np.zeros((3, 64, 10), np.float32), np.full((64, 10), TAU**2)
    controls = fedstack.ClientStates(like=control)
    for number in range(options.rounds):
        ids = np.random.default_rng([seed, number]).choice(20, 10, replace=False)
        given = [model, control, 0.1 if name == "FedProx" else 0.0]
        change, own = train_round(given, controls.select(ids), [clients[k] for k in ids])
        if name == "SCAFFOLD":
            control = control + np.sum([new - controls.get(k) for k, new in zip(ids, own)], axis=0) / np.float32(20)
            controls.update(ids, own)
        if name in ("FedAdam", "FedYogi"):
            momentum, gap = 0.9 * momentum + 0.1 * change, change**2 - square
            square = square + 0.01 * (gap if name == "FedAdam" else np.sign(gap) * change**2)
            change = 0.1 * momentum / (np.sqrt(square) + TAU)
        model = (model + change).astype(np.float32)
        yield np.mean((X[test] @ model).argmax(axis=1) == Y[test])


fedstack.set_sync_local_execution_context()
found = {}
for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedAdam", "FedYogi"):
    found[name] = np.array([list(accuracies(name, seed)) for seed in range(SEEDS)])
    last = found[name][:, -5:].mean(axis=1)
    print(f"{name}: accuracy {last.mean():.3f} on average of {SEEDS} seeds, {last.min():.3f} to {last.max():.3f}")
figure, rounds = Figure((6.4, 5), layout="constrained"), range(1, options.rounds + 1)
for name, axes in zip([*found][1:], figure.subplots(2, 2, sharex=True, sharey=True).flat):
    axes.fill_between(rounds, found[name].min(axis=0), found[name].max(axis=0), alpha=0.3)
    axes.plot(rounds, found[name].mean(axis=0), label=name)
    axes.plot(rounds, found["FedAvg"].mean(axis=0), "k:", label="FedAvg")
    axes.legend(loc="lower right")
figure.supxlabel("round")
figure.supylabel("held-out accuracy")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "curves.svg")
print("picture:", picture)
