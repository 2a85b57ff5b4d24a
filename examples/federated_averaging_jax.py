"""Federated averaging with JAX: the network of federated_averaging.py, compiled by XLA, as `fedstack demo --leaf jax`.

XLA compiles for arrays of fixed sizes. So every batch has eight rows here, and rows that only fill a batch up weigh
nothing. Run it: python examples/federated_averaging_jax.py
"""

from collections import OrderedDict

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
from federated_averaging import BATCH_SIZE, HIDDEN, LEARNING_RATE, LOCAL_EPOCHS, MODEL, PIXELS, load_clients

import fedstack

BATCH = OrderedDict(
    image=(np.float32, [BATCH_SIZE, PIXELS]), digit=(np.int32, [BATCH_SIZE]), weight=(np.float32, [BATCH_SIZE])
)
DATA = fl.SequenceType(BATCH)


def log_odds(model, batch):
    hidden = jax.nn.relu(batch["image"] @ model["hidden"] + model["hidden_bias"])
    return jax.nn.log_softmax(hidden @ model["output"] + model["output_bias"])


def losses(model, batch):
    return -jnp.take_along_axis(log_odds(model, batch), batch["digit"][:, None], axis=1)[:, 0] * batch["weight"]


def train_step(model, batch):
    gradient = jax.grad(lambda model: losses(model, batch).sum() / jnp.maximum(batch["weight"].sum(), 1))(model)
    return jax.tree.map(lambda parameter, change: parameter - LEARNING_RATE * change, model, gradient)


@fedstack.jax_computation(MODEL, DATA)
def train_on_client(model, data):
    examples = data.scan(lambda total, batch: total + batch["weight"].sum(), 0.0)
    for _ in range(LOCAL_EPOCHS):
        model = data.scan(train_step, model)
    return OrderedDict(model=model, examples=examples)


@fedstack.jax_computation(MODEL, DATA)
def evaluate_on_client(model, data):
    def add(totals, batch):
        correct = (log_odds(model, batch).argmax(axis=1) == batch["digit"]) * batch["weight"]
        found = jnp.stack([correct.sum(), losses(model, batch).sum(), batch["weight"].sum()])
        return totals + found

    correct, loss, examples = data.scan(add, jnp.zeros(3))
    some = jnp.maximum(examples, 1)  # a client may hold no images to evaluate on, and then weighs nothing
    return OrderedDict(accuracy=correct / some, loss=loss / some, examples=examples)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(DATA, fl.CLIENTS))
def train_round(model, data):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), data))
    return fl.federated_mean(trained.model, weight=trained.examples)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(DATA, fl.CLIENTS))
def evaluate(model, data):
    metrics = fl.federated_map(evaluate_on_client, (fl.federated_broadcast(model), data))
    return fl.federated_mean(metrics, weight=metrics.examples)


def filled_up(images):
    """Returns images with a weight each, and so many without weight that all batches are full."""
    missing = -len(images["digit"]) % BATCH_SIZE
    image, digit = (np.concatenate([images[name], images[name][:1].repeat(missing, 0)]) for name in ("image", "digit"))
    return {"image": image, "digit": digit, "weight": (np.arange(len(digit)) < len(digit) - missing).astype(np.float32)}


def train(training, evaluation, num_rounds, seed, train_round=train_round):
    """Yields `accuracy` and `loss` on the held-out images after each round, which `train_round` runs."""
    rng = np.random.default_rng(seed)
    model = OrderedDict((name, np.zeros(shape, dtype)) for name, (dtype, shape) in MODEL.items())
    for name, fan_in in (("hidden", PIXELS), ("output", HIDDEN)):
        model[name] = rng.normal(0, np.sqrt(2 / fan_in), model[name].shape).astype(np.float32)
    seeds = fedstack.client_seeds(seed, len(training))
    clients = [filled_up(images) for images in training]
    held_out = [fedstack.batches(filled_up(joined(batches)), BATCH_SIZE) for batches in evaluation]
    for number in range(num_rounds):
        data = [fedstack.batches(images, BATCH_SIZE, shuffle_seed=s, round=number) for images, s in zip(clients, seeds)]
        model = train_round(model, data)
        yield evaluate(model, held_out)


def joined(batches):
    found = list(batches) or [{"image": np.zeros((0, PIXELS), np.float32), "digit": np.zeros(0, np.int32)}]
    return {name: np.concatenate([batch[name] for batch in found]) for name in ("image", "digit")}


if __name__ == "__main__":
    fedstack.set_sync_local_execution_context()
    for number, metrics in enumerate(train(*load_clients(num_clients=100, seed=0), num_rounds=100, seed=0), start=1):
        if number % 10 == 0:
            print(f"round {number}: accuracy {metrics['accuracy']:.4f}, loss {metrics['loss']:.4f}")
