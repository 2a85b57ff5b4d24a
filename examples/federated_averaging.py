"""Federated averaging on handwritten digits: what `fedstack demo` runs, and what you may copy.

Each client trains a small neural network on its own images; the server averages the networks, weighted by how many
images each has seen. Run it: python examples/federated_averaging.py
"""

from collections import OrderedDict

import federated_language as fl
import numpy as np

import fedstack

PIXELS, HIDDEN, DIGITS = 64, 64, 10
BATCH_SIZE, LOCAL_EPOCHS, LEARNING_RATE = 8, 3, np.float32(0.3)
SKEW = 0.2  # of the Dirichlet distribution of a client's digits: small means few kinds of digits per client
HELD_OUT = 360  # of 1,797 images

MODEL = OrderedDict(
    hidden=(np.float32, [PIXELS, HIDDEN]),
    hidden_bias=(np.float32, [HIDDEN]),
    output=(np.float32, [HIDDEN, DIGITS]),
    output_bias=(np.float32, [DIGITS]),
)
DATA = fl.SequenceType(OrderedDict(image=(np.float32, [None, PIXELS]), digit=(np.int32, [None])))


def predict(model, image):
    hidden = np.maximum(image @ model["hidden"] + model["hidden_bias"], 0)
    logits = hidden @ model["output"] + model["output_bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


@fedstack.python_computation([MODEL, DATA], OrderedDict(model=MODEL, examples=np.float32))
def train_on_client(model, data):
    model = OrderedDict((name, array.copy()) for name, array in model.items())  # what comes in is read-only
    for _ in range(LOCAL_EPOCHS):
        examples = 0
        for batch in data:
            hidden, odds = predict(model, batch["image"])
            error = (odds - np.eye(DIGITS, dtype=np.float32)[batch["digit"]]) / np.float32(len(odds))
            hidden_error = (error @ model["output"].T) * (hidden > 0)
            model["output"] -= LEARNING_RATE * (hidden.T @ error)
            model["output_bias"] -= LEARNING_RATE * error.sum(axis=0)
            model["hidden"] -= LEARNING_RATE * (batch["image"].T @ hidden_error)
            model["hidden_bias"] -= LEARNING_RATE * hidden_error.sum(axis=0)
            examples += len(odds)
    return OrderedDict(model=model, examples=np.float32(examples))


@fedstack.python_computation([MODEL, DATA], OrderedDict(accuracy=np.float64, loss=np.float64, examples=np.float64))
def evaluate_on_client(model, data):
    correct, loss, examples = 0, 0.0, 0
    for batch in data:
        _, odds = predict(model, batch["image"])
        correct += (odds.argmax(axis=1) == batch["digit"]).sum()
        loss -= np.log(odds[np.arange(len(odds)), batch["digit"]]).sum(dtype=np.float64)
        examples += len(odds)
    some = max(examples, 1)  # a client may hold no images to evaluate on, and then weighs nothing
    return OrderedDict(accuracy=correct / some, loss=loss / some, examples=float(examples))


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(DATA, fl.CLIENTS))
def train_round(model, data):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), data))
    return fl.federated_mean(trained.model, weight=trained.examples)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(DATA, fl.CLIENTS))
def evaluate(model, data):
    metrics = fl.federated_map(evaluate_on_client, (fl.federated_broadcast(model), data))
    return fl.federated_mean(metrics, weight=metrics.examples)


def load_clients(num_clients, seed):
    """Returns each client's images to train on and batches to evaluate on; nobody trains on what others evaluate on."""
    from sklearn.datasets import load_digits  # here, since workers that import this file for its functions need none

    rng = np.random.default_rng(seed)
    image, digit = load_digits(return_X_y=True)
    image, digit = (image / 16).astype(np.float32), digit.astype(np.int32)
    held_out, rest = np.split(rng.permutation(len(digit)), [HELD_OUT])
    if not 1 <= num_clients <= len(rest):
        raise ValueError(f"expected 1 to {len(rest)} clients, so that each holds an image, found {num_clients}")
    taste = rng.dirichlet([SKEW] * DIGITS, num_clients)[:, digit[rest]]  # [client, image]
    owner = [rng.choice(num_clients, p=tastes / tastes.sum()) for tastes in taste.T]
    owner[:num_clients] = range(num_clients)  # nobody goes empty
    parts = fedstack.by_client({"client": owner, "image": image[rest], "digit": digit[rest]}, "client")
    training = list(parts.values())
    evaluation = [
        fedstack.batches({"image": image[rows], "digit": digit[rows]}, 32)
        for rows in np.array_split(held_out, num_clients)
    ]
    return training, evaluation


def train(training, evaluation, num_rounds, seed, train_round=train_round):
    """Yields `accuracy` and `loss` on the held-out images after each round, which `train_round` runs."""
    rng = np.random.default_rng(seed)
    model = OrderedDict((name, np.zeros(shape, dtype)) for name, (dtype, shape) in MODEL.items())
    for name, fan_in in (("hidden", PIXELS), ("output", HIDDEN)):
        model[name] = rng.normal(0, np.sqrt(2 / fan_in), model[name].shape).astype(np.float32)
    seeds = fedstack.client_seeds(seed, len(training))
    for number in range(num_rounds):
        # A client's images come in another order in every round, and in every epoch of it.
        clients = zip(training, seeds)
        data = [fedstack.batches(images, BATCH_SIZE, shuffle_seed=s, round=number) for images, s in clients]
        model = train_round(model, data)
        yield evaluate(model, evaluation)


if __name__ == "__main__":
    fedstack.set_sync_local_execution_context()
    for number, metrics in enumerate(train(*load_clients(num_clients=100, seed=0), num_rounds=100, seed=0), start=1):
        if number % 10 == 0:
            print(f"round {number}: accuracy {metrics['accuracy']:.4f}, loss {metrics['loss']:.4f}")
