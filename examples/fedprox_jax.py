"""FedAvg and FedProx with optax, each with an MLP and a CNN, on clients that hold few kinds of digits each.

In each round some clients train the model on their own images, and the server averages their models. This is FedAvg
(McMahan et al., 2017). FedProx (Li et al., 2020) adds mu / 2 times the squared distance from the model that a client
received to the client's loss. So FedAvg is FedProx with mu = 0. pip install "fedstack[demo,jax]" optax, and run it:

  python examples/fedprox_jax.py                                         # draws fedprox.png
  python examples/fedprox_jax.py --optimizer adam --mu 1 --networks MLP
  python examples/fedprox_jax.py --workers                               # again on two workers: the same bits
  python examples/fedprox_jax.py --workers localhost:8000 localhost:8001

`fedstack serve --port 8000` starts a worker. It has none of this code: it accepts only what JAX has exported.
"""

import argparse
import contextlib
import time

import federated_language as fl
import jax
import numpy as np
import optax
from jax_digits import NETWORKS, SIDE, draw_batches, initial_model, load_clients
from matplotlib.figure import Figure

import fedstack
from fedstack.service import local_worker_pool

CLIENTS, PIECES_EACH, CLIENTS_PER_ROUND = 50, 2, 20
BATCHES, BATCH_SIZE = 10, 16  # of a client in a round
OPTIMIZERS = {"sgd": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.003)}

parser = argparse.ArgumentParser(description="Compares FedAvg and FedProx.")
parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="of the clients")
parser.add_argument("--mu", type=float, default=0.3, help="of FedProx")
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--picture", default="fedprox.png")
parser.add_argument("--workers", nargs="*", metavar="ADDRESS", help="as in localhost:8000; without, two are started")


def make_round(network, optimizer):
    MODEL = {name: (np.float32, shape) for name, shape in network.shapes.items()}
    DATA = {"image": (np.float32, [BATCHES, BATCH_SIZE, SIDE, SIDE]), "digit": (np.int32, [BATCHES, BATCH_SIZE])}

    @fedstack.jax_computation(MODEL, np.float32, DATA)
    def train_on_client(received, mu, data):
        def loss(model, batch):
            logits = network.logits(model, batch["image"])
            distance = sum(((model[name] - received[name]) ** 2).sum() for name in model)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["digit"]).mean() + mu / 2 * distance

        def step(state, batch):
            model, memory = state
            updates, memory = optimizer.update(jax.grad(loss)(model, batch), memory, model)
            return (optax.apply_updates(model, updates), memory), None

        state = received, optimizer.init(received)
        if not network.unrolled:
            return jax.lax.scan(step, state, data)[0][0]
        for number in range(BATCHES):
            state, _ = step(state, {name: array[number] for name, array in data.items()})
        return state[0]

    SERVER_MU = fl.FederatedType(np.float32, fl.SERVER)  # an argument, so both algorithms are one compiled program

    @fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), SERVER_MU, fl.FederatedType(DATA, fl.CLIENTS))
    def train_round(model, mu, data):
        trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), fl.federated_broadcast(mu), data))
        return fl.federated_mean(trained)  # all clients weigh the same, since they take steps on as many images

    return train_round


def train(networks, optimizer, mu, num_rounds, seed=0):
    """Trains each network with FedAvg and with FedProx; returns the models, and their accuracies after each round."""
    random = np.random.default_rng(seed)
    clients, (image, digit) = load_clients(CLIENTS, PIECES_EACH, random)
    rounds = {name: make_round(NETWORKS[name], OPTIMIZERS[optimizer]) for name in networks}
    logits = {name: jax.jit(NETWORKS[name].logits) for name in networks}
    strengths = {"FedAvg": 0.0, "FedProx": mu}
    models = {(name, algorithm): initial_model(NETWORKS[name], seed) for name in networks for algorithm in strengths}
    accuracies = {run: [] for run in models}
    for number in range(1, num_rounds + 1):
        begin = time.perf_counter()
        chosen = random.choice(CLIENTS, CLIENTS_PER_ROUND, replace=False)
        data = [draw_batches(clients[client], BATCHES, BATCH_SIZE, random) for client in chosen]
        for name, algorithm in models:
            model = rounds[name](models[name, algorithm], strengths[algorithm], data)
            models[name, algorithm] = model
            accuracies[name, algorithm].append(float((logits[name](model, image).argmax(axis=1) == digit).mean()))
        shown = ", ".join(f"{name} {algorithm} {found[-1]:.3f}" for (name, algorithm), found in accuracies.items())
        print(f"round {number} ({time.perf_counter() - begin:.2f} s): {shown}", flush=True)
    return models, accuracies


def draw(accuracies, path):
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, algorithm), found in accuracies.items():
        style, colour = {"FedAvg": ".--", "FedProx": ".-"}[algorithm], {"MLP": "#0b6e99", "CNN": "#c8553d"}[name]
        axes.plot(range(1, len(found) + 1), found, style, color=colour, markersize=4, label=f"{name}, {algorithm}")
    axes.set(xlabel="round", ylabel="accuracy on held-out images", ylim=(0, 1))
    axes.set_title(f"Handwritten digits, {CLIENTS_PER_ROUND} of {CLIENTS} clients in each round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)


def main(arguments=None):
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"Expected --rounds to be at least 1, found {options.rounds}; pass the number of rounds")
    settings = options.networks, options.optimizer, options.mu, options.rounds
    with fedstack.create_sync_local_execution_context(progress=True):  # shows calls that take seconds: the first ones
        models, accuracies = train(*settings)
    draw(accuracies, options.picture)
    print(f"picture: {options.picture}")
    if options.workers is None:
        return
    with contextlib.ExitStack() as stack:
        no_code = {"modules": [], "options": ["--no-allow-python-code"]}
        workers = options.workers or stack.enter_context(local_worker_pool(2, **no_code))
        stack.enter_context(fedstack.create_sync_remote_execution_context(workers, progress=True))
        again, _ = train(*settings)
    assert all(again[run][name].tobytes() == array.tobytes() for run in models for name, array in models[run].items())
    print("the workers' models have the same bits")


if __name__ == "__main__":
    main()
