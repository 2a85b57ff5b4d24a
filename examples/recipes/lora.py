"""LoRA (Hu et al., 2021): clients train and send small matrices beside a transformer that stays as it is.

A matrix W becomes W + B A, of which only B and A, of rank 2, are trained and sent. The transformer reads an image as 8
rows. It is trained for some seconds here, with upright digits. The digits of clients are upside down.
"""

import argparse
from pathlib import Path

import federated_language as fl
import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=20, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
x, y = np.float32(load_digits().images / 16), np.int32(load_digits().target)
public, test, train = np.split((random := np.random.default_rng(options.seed)).permutation(len(y)), [500, 860])
clients = [train[rows] for rows in DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=options.seed)]
BATCHES = {"x": (np.float32, [6, 16, 8, 8]), "y": (np.int32, [6, 16])}
ADAPTED = {"query": (64, 64), "key": (64, 64), "value": (64, 64), "up": (64, 256), "down": (256, 64)}
SHAPES = {**ADAPTED, "pixels": (8, 64), "rows": (8, 64), "digits": (64, 10)}


def scores(sent, x):
    model = sent if "pixels" in sent else base | {name: base[name] + b @ a for name, (b, a) in sent.items()}
    state = x @ model["pixels"] + model["rows"]
    heads = [(jax.nn.standardize(state) @ model[name]).reshape(-1, 8, 4, 16) for name in ("query", "key", "value")]
    state = state + jax.nn.dot_product_attention(*heads).reshape(-1, 8, 64)
    state = state + jax.nn.relu(jax.nn.standardize(state) @ model["up"]) @ model["down"]
    return jax.nn.standardize(state.mean(axis=1)) @ model["digits"]


def federate(sent, rate, clients, x, rounds):
    SENT, optimizer, curve = fedstack.type_of(sent), optax.adam(rate), []

    def step(state, batch):
        loss = optax.softmax_cross_entropy_with_integer_labels
        slope = jax.grad(lambda sent: loss(scores(sent, batch["x"]), batch["y"]).mean())(state[0])
        updates, memory = optimizer.update(slope, state[1])
        return (optax.apply_updates(state[0], updates), memory), None

    @fedstack.jax_computation(SENT, BATCHES)
    def train_on_client(sent, batches):
        return jax.lax.scan(step, (sent, optimizer.init(sent)), dict(batches))[0][0]

    @fl.federated_computation(fl.FederatedType(SENT, fl.SERVER), fl.FederatedType(BATCHES, fl.CLIENTS))
    def train_round(sent, clients):
        return fl.federated_mean(fl.federated_map(train_on_client, (fl.federated_broadcast(sent), clients)))

    for number in range(1, rounds + 1):
        drawn = [random.choice(rows, (6, 16)) for rows in clients]
        sent = train_round(sent, [{"x": x[rows], "y": y[rows]} for rows in drawn])
        curve.append(float((jax.jit(scores)(sent, x[test]).argmax(axis=1) == y[test]).mean()))
        print(f"round {number}: accuracy {curve[-1]:.3f}")
    return sent, curve, sum(array.nbytes for array in jax.tree.leaves(sent)) / 1e3


fedstack.set_sync_local_execution_context()
model = {name: random.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
base, *_ = federate(model, 3e-3, [public], x, rounds=40)
adapters = {name: (0 * base[name][:, :2], base[name][:2]) for name in ADAPTED}  # Hu et al. draw A at random
axes, said = Figure(figsize=(6.4, 3.6), layout="constrained").subplots(), []
for name, sent, rate in [("adapters", adapters, 3e-2), ("the whole model", base, 3e-3)]:
    _, curve, size = federate(sent, rate, clients, x[:, ::-1], options.rounds)
    axes.semilogx(size * np.arange(1, len(curve) + 1), curve, label=name)
    said.append(f"{name} {curve[-1]:.2f} with {size:.1f} kB a round from each client")
axes.set(xlabel="kB that a client has sent", ylabel="accuracy on held-out digits")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "lora.svg")
print(f"accuracy after {options.rounds} rounds: {'; '.join(said)}\npicture: {picture}")
