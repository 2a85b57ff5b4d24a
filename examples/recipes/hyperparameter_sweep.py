"""A sweep over the step sizes of clients and server, each run of FedAvg on the next process that is free.

model += s * mean_k u_k, for the server's step size s, and changes u_k that clients find with step size c (Reddi et al.,
2021). Validation digits choose the best run, and held-out ones tell how good it is. A run is one call of a coordinator.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner
from fedstack.service import local_worker_pool
from fedstack.service.coordinator import ClusterCoordinator

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=8, help="how many rounds a run has (%(default)s)")
parser.add_argument("--points", type=int, default=5, help="how many values of each step size (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
MODEL, ROWS = (np.float32, [65, 10]), {"x": (np.float32, [None, 65]), "y": (np.int32, [None]), "step": np.float32}


@fedstack.python_computation([MODEL, ROWS], MODEL)
def change_of_client(start, rows):
    model = start
    for _ in range(5):  # steps down the slope of the cross entropy
        error = softmax(rows["x"] @ model, axis=1) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - rows["step"] / len(error) * rows["x"].T @ error
    return model - start


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def mean_change(model, clients):
    return fl.federated_mean(fl.federated_map(change_of_client, (fl.federated_broadcast(model), clients)))


def accuracy_of(client_step, server_step, rounds):
    fedstack.set_sync_local_execution_context()
    x, y = load_digits(return_X_y=True)
    x, y = np.insert(x / 16, 0, 1, axis=1).astype(np.float32), y.astype(np.int32)
    test, choose, train = np.split(np.random.default_rng(0).permutation(len(y)), [360, 720])
    clients = DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=0).split({"x": x[train], "y": y[train]})
    clients, model = [{**rows, "step": client_step} for rows in clients], np.zeros((65, 10), np.float32)
    for _ in range(rounds):
        model = model + np.float32(server_step) * mean_change(model, clients)
    return [np.mean((x[rows] @ model).argmax(axis=1) == y[rows]) for rows in (choose, test)]


if __name__ == "__main__":  # workers import this file
    steps = [float(step) for step in np.geomspace(0.03, 30, max(options.points, 1))]
    with local_worker_pool(2) as workers, ClusterCoordinator(workers) as coordinator:
        runs = [[coordinator.schedule(accuracy_of, (c, s, options.rounds)) for c in steps] for s in steps]
        accuracies, tested = np.moveaxis(np.array(coordinator.fetch(runs)), -1, 0)
    axes = (figure := Figure(figsize=(5, 4), layout="constrained")).add_subplot()
    figure.colorbar(axes.imshow(accuracies, origin="lower"), label=f"validation accuracy after {options.rounds} rounds")
    ticks, labels = range(len(steps)), [f"{step:.2g}" for step in steps]
    axes.set(xticks=ticks, xticklabels=labels, xlabel="step size of clients")
    axes.set(yticks=ticks, yticklabels=labels, ylabel="step size of the server")
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture := options.out / "hyperparameter_sweep.svg")
    server, client = best = np.unravel_index(accuracies.argmax(), accuracies.shape)
    found = f"the best steps: {labels[client]} of clients, {labels[server]} of the server"
    print(f"accuracy {tested[best]:.2f} on held-out digits with {found}\npicture: {picture}")
