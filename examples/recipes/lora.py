"""LoRA (Hu et al., 2021): a matrix W of a transformer becomes W + B A; clients train and send B and A, of rank 2."""

import argparse
from pathlib import Path

import federated_language as fl
import jax
import numpy as np
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
    state = x @ model["pixels"] + model["rows"]  # the transformer reads an image as 8 rows
    heads = [(jax.nn.standardize(state) @ model[name]).reshape(-1, 8, 4, 16) for name in ("query", "key", "value")]
    state = state + jax.nn.dot_product_attention(*heads).reshape(-1, 8, 64)
    state = state + jax.nn.relu(jax.nn.standardize(state) @ model["up"]) @ model["down"]
    return jax.nn.log_softmax(jax.nn.standardize(state.mean(axis=1)) @ model["digits"])


def federate(sent, rate, clients, x, rounds, curve=()):
    def step(sent, batch):
        slopes = jax.grad(lambda sent: -scores(sent, batch["x"])[np.arange(16), batch["y"]].mean())(sent)
        return jax.tree.map(lambda weights, slope: weights - rate * slope, sent, slopes), None

    @fedstack.jax_computation(SENT := fedstack.type_of(sent), BATCHES)
    def train_on_client(sent, batches):
        return jax.lax.scan(step, sent, dict(batches))[0]

    @fl.federated_computation(fl.FederatedType(SENT, fl.SERVER), fl.FederatedType(BATCHES, fl.CLIENTS))
    def train_round(sent, clients):
        return fl.federated_mean(fl.federated_map(train_on_client, (fl.federated_broadcast(sent), clients)))

    for number in range(1, rounds + 1):
        sent = train_round(sent, [{"x": x[rows := random.choice(own, (6, 16))], "y": y[rows]} for own in clients])
        curve += (float((jax.jit(scores)(sent, x[test]).argmax(axis=1) == y[test]).mean()),)
        print(f"round {number}: accuracy {curve[-1]:.3f}")
    return sent, curve, sum(array.nbytes for array in jax.tree.leaves(sent)) / 1e3


fedstack.set_sync_local_execution_context()
model = {name: random.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
base, *_ = federate(model, 0.2, [public], x, rounds=40)  # upright digits; those of clients are upside down
adapters = {name: (0 * base[name][:, :2], base[name][:2]) for name in ADAPTED}  # Hu et al. draw A at random
axes = Figure((6.4, 3.6), layout="constrained").add_subplot(xlabel="kB sent by a client", ylabel="held-out accuracy")
for name, sent, rate in [("adapters", adapters, 0.4), ("the whole model", base, 0.2)]:
    _, curve, size = federate(sent, rate, clients, x[:, ::-1], options.rounds)
    axes.semilogx(size * np.arange(1, len(curve) + 1), curve, label=f"{name}, {size:.1f} kB a round: {curve[-1]:.2f}")
axes.legend()
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "lora.svg")
print(f"accuracy after {options.rounds} rounds: {'; '.join(axes.get_legend_handles_labels()[1])}\npicture: {picture}")
