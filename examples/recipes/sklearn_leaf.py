"""A scikit-learn model in clients: SGDClassifier, whose coefficients are averaged (FedAvg, McMahan et al., 2017).

In each round a client puts the coefficients that it received where scikit-learn keeps its own, makes two passes over
its rows with `partial_fit`, and returns them. `partial_fit` needs all classes once, since a client may lack some.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=10, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")

x, y = load_digits(return_X_y=True)
x, y = x / 16, y.astype(np.int32)
test, train = np.split(np.random.default_rng(0).permutation(len(y)), [360])
clients = DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=0).split({"x": x[train], "y": y[train]})
MODEL, ROWS = (
    {"coef": (np.float64, [10, 64]), "intercept": (np.float64, [10])},
    fedstack.type_of(clients[0], open_rows=True),
)


def learner_of(model, rows=None, passes=0):
    learner = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1, random_state=0)
    learner.partial_fit(np.zeros((1, 64)), [0], classes=range(10))
    learner.coef_, learner.intercept_ = model["coef"].copy(), model["intercept"].copy()
    for _ in range(passes):
        learner.partial_fit(rows["x"], rows["y"])
    return learner


@fedstack.python_computation([MODEL, ROWS], {"model": MODEL, "rows": np.float32})
def train_on_client(model, rows):
    learner = learner_of(model, rows, passes=2)
    model = {"coef": learner.coef_, "intercept": learner.intercept_}
    return {"model": model, "rows": np.float32(len(rows["y"]))}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def train_round(model, clients):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients))
    return fl.federated_mean(trained.model, weight=trained.rows)


fedstack.set_sync_local_execution_context(max_concurrent_clients=1)  # scikit-learn changes global warning filters
start = model = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
curve, passes = [], 2 * options.rounds
for number in range(1, options.rounds + 1):
    model = train_round(model, clients)
    curve.append(learner_of(model).score(x[test], y[test]))
    print(f"round {number}: accuracy {curve[-1]:.3f}")
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
axes.plot(range(1, len(curve) + 1), curve)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "sklearn_leaf.svg")
alone = np.mean([learner_of(start, rows, passes).score(x[test], y[test]) for rows in clients])
found = f"accuracy {curve[-1]:.2f} on held-out digits after {options.rounds} rounds"
print(f"{found}; alone, after {passes} passes, {alone:.2f}\npicture: {picture}")
