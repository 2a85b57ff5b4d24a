"""FedProx: clients stay close to the global model, and slow ones hand in what they have done (Li et al., 2020).

A client minimises its loss plus mu / 2 |w - w_t|^2. FedAvg leaves out clients that are too slow for all their steps.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

CLIENTS, PER_ROUND, STEPS, RATE, MOMENTUM, SLOW = 20, 10, 20, np.float32(0.1), np.float32(0.9), 0.7
MODEL = [(np.float32, [64, 32]), (np.float32, [32, 10])]
WORK = {"x": (np.float32, [None, 64]), "y": (np.int32, [None]), "batches": (np.int32, [None, 16])}
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=25, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([[MODEL, np.float32], WORK], [MODEL, np.float32])
def train_on_client(given, work):
    (start, mu), model, speeds = given, given[0], [np.zeros_like(array) for array in given[0]]
    for rows in work["batches"]:
        x, y = work["x"][rows], work["y"][rows]
        hidden = np.maximum(x @ model[0], 0)
        odds = np.exp(hidden @ model[1])
        error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[y]) / np.float32(len(y))
        slopes = [x.T @ ((error @ model[1].T) * (hidden > 0)), hidden.T @ error]
        speeds = [MOMENTUM * v + slope + mu * (w - w_t) for v, slope, w, w_t in zip(speeds, slopes, model, start)]
        model = [w - RATE * v for w, v in zip(model, speeds)]
    return model, np.float32(len(work["y"]))


@fl.federated_computation(fl.FederatedType([MODEL, np.float32], fl.SERVER), fl.FederatedType(WORK, fl.CLIENTS))
def train_round(given, work):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(given), work))
    return fl.federated_mean(trained[0], weight=trained[1])


x, y = (array.astype(np.float32) for array in load_digits(return_X_y=True))
held_out, rest = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
split = DirichletPartitioner(CLIENTS, alpha=0.1, min_partition_size=5).partition(y[rest], seed=options.seed)
clients = split.split({"x": x[rest] / 16, "y": y[rest].astype(np.int32)})
fedstack.set_sync_local_execution_context()
axes, last = Figure((6.4, 4), layout="constrained").add_subplot(xlabel="round", ylabel="held-out accuracy"), {}
for name, mu in (("FedAvg without slow clients", 0.0), ("FedAvg with their models", 0.0), ("FedProx, mu = 0.1", 0.1)):
    random, curve = np.random.default_rng(options.seed), []
    model = [random.normal(0, 0.2, shape).astype(np.float32) for _, shape in MODEL]
    for _ in range(options.rounds):
        ids = random.choice(CLIENTS, PER_ROUND, replace=False)
        steps = {k: random.integers(1, STEPS) if random.random() < SLOW else STEPS for k in ids}
        drawn = {k: random.integers(len(clients[k]["y"]), size=(n, 16), dtype=np.int32) for k, n in steps.items()}
        kept = [k for k in ids if steps[k] == STEPS or "without" not in name] or ids
        model = train_round([model, mu], [{**clients[k], "batches": drawn[k]} for k in kept])
        curve.append(((np.maximum(x[held_out] / 16 @ model[0], 0) @ model[1]).argmax(axis=1) == y[held_out]).mean())
    last[name] = f"{name} {np.mean(curve[-10:]):.3f}"
    print(name, *(f"{accuracy:.2f}" for accuracy in curve))
    axes.plot(range(1, options.rounds + 1), curve, ".-", label=name)
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize="small")  # above all curves
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "fedprox.svg")
print(f"accuracy (mean of 10 rounds): {'; '.join(last.values())}\npicture: {picture}")
