"""Dropouts and quorum: rounds that go on without clients that fail or are slow, as long as enough take part.

`fedstack.ClientFailures`: a client that fails runs once more (`retries`); a round ends when 80 % are done (`enough`).
"""

import argparse
import random
import time
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner
from fedstack.errors import TooManyClientFailuresError

STEPS, RATE, MODEL, KINDS = 10, np.float32(0.3), (np.float32, [64, 10]), ("done", "late", "failed")
WORK = {"x": (np.float32, [None, 64]), "y": (np.int32, [None]), "broken": np.float32, "seconds": np.float32}
FAILURES = fedstack.ClientFailures(tolerate=0.5, min_clients=10, enough=0.8, retries=1)
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=15, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([MODEL, WORK], {"model": MODEL, "rows": np.float32})
def train_on_client(model, work):
    time.sleep(float(work["seconds"]))
    if random.random() < work["broken"]:
        raise ConnectionError("the battery is empty")
    for _ in range(STEPS):
        odds = np.exp(work["x"] @ model)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[work["y"]]
        model = model - RATE * work["x"].T @ error / np.float32(len(error))
    return {"model": model, "rows": np.float32(len(work["y"]))}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(WORK, fl.CLIENTS))
def train_round(model, work):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), work))
    return fl.federated_mean(trained.model, weight=trained.rows)


x, y = (array.astype(np.float32) for array in load_digits(return_X_y=True))
held_out, rest = np.split(np.random.default_rng(0).permutation(len(y)), [360])
split = DirichletPartitioner(20, alpha=0.3).partition(y[rest], seed=0)
clients = split.split({"x": x[rest] / 16, "y": y[rest].astype(np.int32)})
fedstack.set_sync_local_execution_context(client_failures=FAILURES)
model, history = np.zeros((64, 10), np.float32), []
for number in range(1, options.rounds + 1):
    broken = 0.9 if number == 5 else 0.2  # in the fifth round, the network is down
    work = [{**client, "broken": broken, "seconds": 0.5 * (k < 2)} for k, client in enumerate(clients)]
    with fedstack.client_outcomes() as outcomes:
        try:
            model = train_round(model, work)
        except TooManyClientFailuresError as error:
            print(str(error).partition(";")[0])  # the model stays as it is
    accuracy = ((x[held_out] / 16 @ model).argmax(axis=1) == y[held_out]).mean()
    history.append([len(outcomes.of_kind(kind)) for kind in KINDS])
    print(f"round {number}: accuracy {accuracy:.3f}, done, late, failed: {history[-1]}")
axes = Figure((6.4, 4), layout="constrained").add_subplot(xlabel="round", ylabel="clients", yticks=range(0, 21, 5))
axes.stackplot(range(1, options.rounds + 1), np.transpose(history), labels=KINDS, step="mid", colors=("C0", "C1", "C3"))
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "dropouts_and_quorum.svg")
print(f"accuracy {accuracy:.2f} after {number} rounds; done, late, failed: {np.sum(history, 0)}\npicture: {picture}")
