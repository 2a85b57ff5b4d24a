"""A convolutional network of PyTorch in clients (FedAvg, McMahan et al., 2017), for pip install torch.

A model travels as its `state_dict`: the type has its names and shapes, clients get NumPy arrays, and return tensors.
One thread of PyTorch, and one client at a time, are the fastest for networks as small as this one.
"""

import argparse
from copy import deepcopy
from pathlib import Path

import federated_language as fl
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=15, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8), y.astype(np.int64)
test, train = np.split(np.random.default_rng(0).permutation(len(y)), [360])
clients = DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=0).split({"x": x[train], "y": y[train]})
torch.manual_seed(0)
torch.set_num_threads(1)
pooled = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
network = nn.Sequential(*pooled, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
model, curve = network.state_dict(), []
MODEL, BATCHES = fedstack.type_of(model), fl.SequenceType(fedstack.type_of(clients[0], open_rows=True))


def network_of(model):
    net = deepcopy(network)
    net.load_state_dict({name: torch.tensor(array) for name, array in model.items()})
    return net


@fedstack.python_computation([MODEL, BATCHES], MODEL)
def train_on_client(model, batches):
    net = network_of(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.tensor(batch["x"])), torch.tensor(batch["y"])).backward()
        optimizer.step()
    return net.state_dict()


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(BATCHES, fl.CLIENTS))
def train_round(model, clients):
    return fl.federated_mean(fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients)))


fedstack.set_sync_local_execution_context(max_concurrent_clients=1)
for number in range(1, options.rounds + 1):
    data = [fedstack.batches(rows, 8, shuffle_seed=k, round=number) for k, rows in enumerate(clients)]
    model = train_round(model, data)
    curve.append(float((network_of(model)(torch.tensor(x[test])).argmax(1).numpy() == y[test]).mean()))
    print(f"round {number}: accuracy {curve[-1]:.3f}")
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
axes.plot(range(1, len(curve) + 1), curve)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "torch_leaf.svg")
print(f"accuracy {curve[-1]:.2f} on held-out digits after {options.rounds} rounds\npicture: {picture}")
