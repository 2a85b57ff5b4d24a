"""Personal heads: all clients share the body of a network, each keeps a last layer of its own (Arivazhagan et al., 2019).

The server averages the bodies: body = sum_k n_k / n * body_k. The head of client k is trained on its rows only, and
`fedstack.ClientStates` keeps it from round to round. The same code with the mean of the heads is FedAvg.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

CLIENTS, STEPS, RATE, HIDDEN = 24, 10, np.float32(0.3), 16
BODY, HEAD = (np.float32, [64, HIDDEN]), (np.float32, [HIDDEN, 10])
ROWS = {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out"))
options = parser.parse_args()


@fedstack.python_computation([BODY, HEAD, ROWS], {"body": BODY, "head": HEAD, "rows": np.float32})
def train_on_client(body, head, rows):
    for _ in range(STEPS):
        hidden = np.maximum(rows["x"] @ body, 0)
        odds = np.exp(hidden @ head)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[rows["y"]]
        rate = RATE / np.float32(len(error))
        body, head = body - rate * rows["x"].T @ ((error @ head.T) * (hidden > 0)), head - rate * hidden.T @ error
    return {"body": body, "head": head, "rows": np.float32(len(error))}


@fl.federated_computation(
    fl.FederatedType(BODY, fl.SERVER), fl.FederatedType(HEAD, fl.CLIENTS), fl.FederatedType(ROWS, fl.CLIENTS)
)
def train_round(body, heads, rows):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(body), heads, rows))
    body, head = (fl.federated_mean(part, weight=trained.rows) for part in (trained.body, trained.head))
    return body, head, trained.head


def accuracies(personal):
    random = np.random.default_rng(options.seed)
    body, head = (random.normal(0, 0.2, shape).astype(np.float32) for _, shape in (BODY, HEAD))
    heads = fedstack.ClientStates(like=head)
    for _ in range(options.rounds):
        body, head, own = train_round(
            body, heads.select(range(CLIENTS)), [{k: a[::2] for k, a in c.items()} for c in clients]
        )
        heads.update(range(CLIENTS), own if personal else [head] * CLIENTS)
    odds = [np.maximum(c["x"][1::2] @ body, 0) @ heads.get(k) for k, c in enumerate(clients)]
    return np.array([(o.argmax(axis=1) == c["y"][1::2]).mean() for o, c in zip(odds, clients)])


x, y = load_digits(return_X_y=True)
split = DirichletPartitioner(CLIENTS, alpha=0.3).partition(y, seed=options.seed)
clients = split.split({"x": (x / 16).astype(np.float32), "y": y.astype(np.int32)})  # every second row is held out
fedstack.set_sync_local_execution_context()
shared, personal = accuracies(False), accuracies(True)
axes = Figure(figsize=(6.4, 4), layout="constrained").subplots()
for place, k in enumerate(np.argsort(shared)):
    axes.plot([place, place], [shared[k], personal[k]], color="lightgrey")
