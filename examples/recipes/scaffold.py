"""SCAFFOLD: client drift is corrected by control variates (Karimireddy et al., 2020, option II), against FedAvg.

Client k keeps a control c_k, and steps along g - c_k + c, where c is the mean of all controls. After K steps at rate a
from x to y, c_k becomes c_k - c + (x - y) / (K a). `fedstack.ClientStates` keeps the controls between rounds.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import PathologicalPartitioner

CLIENTS, PER_ROUND, STEPS, RATE = 20, 10, 20, np.float32(0.5)
MODEL, ROWS = (np.float32, [64, 10]), {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
SERVER = fl.FederatedType(MODEL, fl.SERVER)
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([MODEL, MODEL, MODEL, ROWS], {"model": MODEL, "own": MODEL, "change": MODEL})
def train_on_client(model, control, own, rows):
    start = model
    for _ in range(STEPS):
        odds = np.exp(rows["x"] @ model)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - RATE * (rows["x"].T @ error / np.float32(len(error)) - own + control)
    new = own - control + (start - model) / (STEPS * RATE)
    return {"model": model, "own": new, "change": new - own}


@fl.federated_computation(SERVER, SERVER, fl.FederatedType(MODEL, fl.CLIENTS), fl.FederatedType(ROWS, fl.CLIENTS))
def train_round(model, control, own, rows):
    model, control = fl.federated_broadcast(model), fl.federated_broadcast(control)
    trained = fl.federated_map(train_on_client, (model, control, own, rows))
    return fl.federated_mean(trained.model), fl.federated_sum(trained.change), trained.own


x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32), y.astype(np.int32)
held_out, rest = np.split(np.random.default_rng(options.seed).permutation(len(y)), [360])
split = PathologicalPartitioner(CLIENTS, num_classes_per_partition=2).partition(y[rest], seed=options.seed)
clients = split.split({"x": x[rest], "y": y[rest]})  # two digits each
fedstack.set_sync_local_execution_context()
axes, last = Figure((6.4, 4), layout="constrained").add_subplot(xlabel="round", ylabel="held-out accuracy"), {}
for name in ("FedAvg", "SCAFFOLD"):
    model, control = np.zeros((2, 64, 10), np.float32)
    controls, curve = fedstack.ClientStates(like=control), []
    for number in range(options.rounds):
        ids = np.random.default_rng([options.seed, number]).choice(CLIENTS, PER_ROUND, replace=False)
        model, change, own = train_round(model, control, controls.select(ids), [clients[k] for k in ids])
        if name == "SCAFFOLD":  # with controls that stay zero, this is FedAvg
            control = control + change / np.float32(CLIENTS)
            controls.update(ids, own)
        curve.append(((x[held_out] @ model).argmax(axis=1) == y[held_out]).mean())
    last[name] = np.mean(curve[-5:])  # of five rounds, as it sways
    print(name, *(f"{accuracy:.2f}" for accuracy in curve))
    axes.plot(range(1, options.rounds + 1), curve, ".-", label=name)
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "scaffold.svg")
print(f"accuracy of the last five rounds {last['SCAFFOLD']:.2f}; of FedAvg {last['FedAvg']:.2f}\npicture: {picture}")
