"""Trees of XGBoost from clients: federated bagging with boosting between the rounds, for pip install xgboost.

In each round every client grows one tree that corrects all trees so far on its own rows, as boosting does, and the
server adds the trees of all clients to the model. A prediction is sum_t sum_k tree_tk(x) / n, for n clients.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
import xgboost
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=8, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")

x, y = load_breast_cancer(return_X_y=True)
test, train = np.split(np.random.default_rng(0).permutation(len(y)), [170])
clients = DirichletPartitioner(10, alpha=0.5).partition(y[train], seed=0).split({"x": x[train], "y": y[train]})
TREES, ROWS = (np.str_, [None]), fedstack.type_of(clients[0], open_rows=True)
SETTINGS = {"objective": "binary:logistic", "base_score": 0.5, "eta": 0.5, "max_depth": 3, "nthread": 1}


def margins(trees, x, num_clients=10):
    data, total = xgboost.DMatrix(x, nthread=1), np.zeros(len(x))
    for tree in trees:
        total += xgboost.Booster(SETTINGS, model_file=bytearray(tree)).predict(data, output_margin=True)
    return total / num_clients


@fedstack.python_computation([TREES, ROWS], np.str_)
def grow_tree(trees, rows):
    data = xgboost.DMatrix(rows["x"], rows["y"], base_margin=margins(trees, rows["x"]), nthread=1)
    return bytes(xgboost.train(SETTINGS, data, num_boost_round=1).save_raw("ubj"))


@fl.federated_computation(fl.FederatedType(TREES, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def grow_trees(trees, clients):  # returns a list
    return fl.federated_map(grow_tree, (fl.federated_broadcast(trees), clients))


fedstack.set_sync_local_execution_context()
trees, curve = [], []
for number in range(1, options.rounds + 1):
    trees += grow_trees(np.array(trees, object), clients)
    curve.append(np.mean((margins(trees, x[test]) > 0) == y[test]))
    print(f"round {number}: {len(trees)} trees, accuracy {curve[-1]:.3f}")
alone = np.mean([np.mean((margins([tree], x[test], 1) > 0) == y[test]) for tree in trees[:10]])
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
axes.plot(range(1, len(curve) + 1), curve, ".-", label="the trees of all clients")
axes.axhline(alone, color="k", linestyle=":", label="one tree of one client, on average")
axes.set_ylim(top=1)
axes.legend(loc="center right")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "xgboost_leaf.svg")
print(f"accuracy {curve[-1]:.2f} on held-out tumors with {len(trees)} trees of 10 clients; one tree alone {alone:.2f}")
print("picture:", picture)
