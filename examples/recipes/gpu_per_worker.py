"""One GPU per worker: each worker is a process with its own CUDA_VISIBLE_DEVICES, and sees no other GPU. Needs JAX.

FedAvg (McMahan et al., 2017): model = mean_k model_k. A worker trains one client at a time, on the device that JAX
finds there: its GPU, or the CPU on a machine without.
"""

import argparse
import os
from pathlib import Path

import federated_language as fl
import jax
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner
from fedstack.service import local_worker_pool

parser = argparse.ArgumentParser()
parser.add_argument("--gpus", type=int, default=2, help="the number of workers (%(default)s)")
parser.add_argument("--rounds", type=int, default=15, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
x, y = load_digits(return_X_y=True)
x, y, random = np.insert(x / 16, 0, 1, axis=1).astype(np.float32), y.astype(np.int32), np.random.default_rng(0)
test, train = np.split(random.permutation(len(y)), [360])
clients = [train[rows] for rows in DirichletPartitioner(20, alpha=0.3).partition(y[train], seed=0)]
MODEL, BATCHES = (np.float32, [65, 10]), {"x": (np.float32, [20, 32, 65]), "y": (np.int32, [20, 32])}
slope = jax.jit(jax.grad(lambda model, x, y: -jax.nn.log_softmax(x @ model)[np.arange(len(y)), y].mean()))


@fedstack.python_computation([MODEL, BATCHES], {"model": MODEL, "device": np.str_})
def train_on_client(model, batches):
    for x, y in zip(batches["x"], batches["y"]):
        model = model - 0.5 * slope(model, x, y)
    kind = {"gpu": "GPU", "cpu": "CPU, worker"}.get(model.device.platform, model.device.platform)
    return {"model": model, "device": f"{kind} {os.environ['CUDA_VISIBLE_DEVICES']}"}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(BATCHES, fl.CLIENTS))
def train_round(model, clients):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients))
    return fl.federated_mean(trained.model), trained.device


model, devices = np.zeros((65, 10), np.float32), []
gpus = [{"CUDA_VISIBLE_DEVICES": str(number)} for number in range(options.gpus)]
pool = local_worker_pool(options.gpus, environment=gpus, options=["--threads", "1"])
with pool, fedstack.create_sync_remote_execution_context(pool):
    for number in range(1, options.rounds + 1):
        drawn = [random.choice(rows, (20, 32)) for rows in clients]
        model, used = train_round(model, [{"x": x[rows], "y": y[rows]} for rows in drawn])
        devices, accuracy = devices + used, np.mean((x[test] @ model).argmax(axis=1) == y[test])
        print(f"round {number}: accuracy {accuracy:.3f}")
axes = (figure := Figure(figsize=(6.4, 2.4), layout="constrained")).add_subplot(
    xlabel="clients trained", ylabel="device"
)
axes.barh(*np.unique(np.array(devices, str), return_counts=True))
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "gpu_per_worker.svg")
where = "each on its GPU" if all(b"GPU" in name for name in devices) else "on the CPU, as JAX found no GPU"
print(f"accuracy {accuracy:.2f} after {number} rounds on {len(set(devices))} workers, {where}\npicture: {picture}")
