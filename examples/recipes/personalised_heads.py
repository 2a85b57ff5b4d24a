"""Personal heads: each client has a last layer of its own, from the first round on (Arivazhagan 2019) or fine-tuned."""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import PathologicalPartitioner

CLIENTS, STEPS, RATE, HIDDEN, TUNING_ROUNDS = 24, 10, np.float32(0.3), 16, 5
BODY, HEAD = (np.float32, [64, HIDDEN]), (np.float32, [HIDDEN, 10])
ROWS = {"x": (np.float32, [None, 64]), "y": (np.int32, [None])}
AT_SERVER = fl.FederatedType((BODY, np.float32), fl.SERVER)
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")


@fedstack.python_computation([(BODY, np.float32), HEAD, ROWS], {"body": BODY, "head": HEAD, "rows": np.float32})
def train_on_client(body_and_rate, head, rows):
    body, body_rate = body_and_rate
    for _ in range(STEPS):
        hidden = np.maximum(rows["x"] @ body, 0)
        odds = np.exp(hidden @ head)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[rows["y"]]
        change = rows["x"].T @ ((error @ head.T) * (hidden > 0)) / np.float32(len(error))
        body, head = body - body_rate * change, head - RATE / np.float32(len(error)) * hidden.T @ error
    return {"body": body, "head": head, "rows": np.float32(len(error))}


@fl.federated_computation(AT_SERVER, fl.FederatedType(HEAD, fl.CLIENTS), fl.FederatedType(ROWS, fl.CLIENTS))
def train_round(body, heads, rows):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(body), heads, rows))
    body, head = (fl.federated_mean(part, weight=trained.rows) for part in (trained.body, trained.head))
    return body, head, trained.head


x, y = load_digits(return_X_y=True)
split = PathologicalPartitioner(CLIENTS, num_classes_per_partition=3).partition(y, seed=options.seed)
clients = split.split({"x": (x / 16).astype(np.float32), "y": y.astype(np.int32)})
training = [{name: rows[::2] for name, rows in client.items()} for client in clients]  # the others are held out
fedstack.set_sync_local_execution_context()
found, ids = {}, range(CLIENTS)
for name in ("one head", "fine-tuned heads", "personal heads"):
    tunes = name == "fine-tuned heads"  # they begin as the one head, and the body stays as it is
    if not tunes:
        random = np.random.default_rng(options.seed)
        body, head = (random.normal(0, 0.2, shape).astype(np.float32) for _, shape in (BODY, HEAD))
    states = fedstack.ClientStates(like=head)
    for _ in range(TUNING_ROUNDS if tunes else options.rounds):
        body, head, heads = train_round((body, np.float32(0) if tunes else RATE), states.select(ids), training)
        states.update(ids, [head] * CLIENTS if name == "one head" else heads)  # the mean of all heads is FedAvg
    odds = [np.maximum(client["x"][1::2] @ body, 0) @ states.get(k) for k, client in enumerate(clients)]
    found[name] = np.array([(o.argmax(axis=1) == c["y"][1::2]).mean() for o, c in zip(odds, clients)])
axes, order = Figure((6.4, 4), layout="constrained").subplots(), np.argsort(found["one head"])
for (name, accuracy), marker in zip(found.items(), "ox+"):
    axes.plot(accuracy[order], marker, label=name, markersize=8)
axes.set(xlabel="clients, in the order of their accuracy with one head", ylabel="accuracy on own held-out digits")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "personalised_heads.svg")
means = ", ".join(f"{accuracy.mean():.2f} with {name}" for name, accuracy in found.items())
print(f"mean accuracy after {options.rounds} rounds: {means}\npicture: {picture}")
