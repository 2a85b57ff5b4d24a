"""A network of JAX in clients, trained with an optimizer of optax (FedAvg, McMahan et al., 2017).

XLA compiles the clients' function, and runs it for several at once. Hence known shapes: 8 batches of 32 images a round.
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
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")

x, y = load_digits(return_X_y=True)
x, y, random = (x / 16).astype(np.float32), y.astype(np.int32), np.random.default_rng(0)
test, train = np.split(random.permutation(len(y)), [360])
clients = DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=0).split({"x": x[train], "y": y[train]})
model = {"hidden": random.normal(0, 0.18, (64, 64)), "bias": np.zeros(64), "output": np.zeros((64, 10))}
model = {name: array.astype(np.float32) for name, array in model.items()}
MODEL, BATCHES = fedstack.type_of(model), {"x": (np.float32, [8, 32, 64]), "y": (np.int32, [8, 32])}
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def logits(model, x):
    return jax.nn.relu(x @ model["hidden"] + model["bias"]) @ model["output"]


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits(model, batch["x"]), batch["y"]).mean()


@fedstack.jax_computation(MODEL, BATCHES)
def train_on_client(model, batches):
    def step(state, batch):
        model, memory = state
        updates, memory = OPTIMIZER.update(jax.grad(loss)(model, batch), memory)
        return (optax.apply_updates(model, updates), memory), None

    return jax.lax.scan(step, (model, OPTIMIZER.init(model)), dict(batches))[0][0]


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(BATCHES, fl.CLIENTS))
def train_round(model, clients):
    return fl.federated_mean(fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients)))


fedstack.set_sync_local_execution_context()
curve = []
for number in range(1, options.rounds + 1):
    drawn = [random.choice(len(rows["y"]), (8, 32)) for rows in clients]
    model = train_round(model, [{name: rows[name][places] for name in rows} for rows, places in zip(clients, drawn)])
    curve.append(float((logits(model, x[test]).argmax(axis=1) == y[test]).mean()))
    print(f"round {number}: accuracy {curve[-1]:.3f}")
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
axes.plot(range(1, len(curve) + 1), curve)
axes.locator_params(axis="x", integer=True)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "jax_leaf.svg")
print(f"accuracy {curve[-1]:.2f} on held-out digits after {options.rounds} rounds\npicture: {picture}")
