"""A program that trains with FedAdam and is killed at moments that the caller chooses: python training_run.py FOLDER N

It ends itself with SIGKILL before the Nth write, sync, rename or removal of a file; with N = 0 it runs to its end.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import federated_language as fl
import numpy as np

import fedstack
from fedstack.program import CSVFileReleaseManager, FederatedContext, FileProgramStateManager, JSONLinesReleaseManager

ROUNDS, CLIENTS = 6, 4
MODEL = fl.TensorType(np.float32, [5])
ADAM = fl.to_type({"model": MODEL, "mean": MODEL, "square": MODEL})


@fedstack.python_computation([ADAM], MODEL)
def model_of(state):
    return state["model"]


@fedstack.python_computation([MODEL, MODEL], MODEL)
def step_of_client(model, target):
    return np.float32(0.3) * (target - model)


@fedstack.python_computation([ADAM, MODEL], ADAM)
def adam(state, change):
    mean = np.float32(0.9) * state["mean"] + np.float32(0.1) * change
    square = np.float32(0.99) * state["square"] + np.float32(0.01) * change**2
    model = state["model"] + np.float32(0.1) * mean / (np.sqrt(square) + np.float32(1e-3))
    return {"model": model, "mean": mean, "square": square}


@fedstack.python_computation([MODEL], np.float32)
def size_of(change):
    return np.sqrt(np.sum(change**2))


@fl.federated_computation(fl.FederatedType(ADAM, fl.SERVER), fl.FederatedType(MODEL, fl.CLIENTS))
def train_round(state, targets):
    model = fl.federated_broadcast(fl.federated_map(model_of, state))
    change = fl.federated_mean(fl.federated_map(step_of_client, (model, targets)))
    return fl.federated_map(adam, (state, change)), fl.federated_map(size_of, change)


def kill_before(number: int) -> None:
    """Ends this process before so many calls that change files."""
    left = number

    def counted(function):
        def call(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "unlink", "remove"):
        setattr(os, name, counted(getattr(os, name)))
    Path.unlink = counted(Path.unlink)


async def train(folder: Path) -> None:
    states = FileProgramStateManager(folder / "states", keep_total=2, keep_every_k=3)
    metrics = [
        CSVFileReleaseManager(folder / "metrics.csv", state_manager=states),
        JSONLinesReleaseManager(folder / "metrics.jsonl", state_manager=states),
    ]
    state = {name: np.zeros(5, np.float32) for name in ("model", "mean", "square")}
    found, version = await states.load_latest(state)
    state = state if found is None else found
    for number in range(version + 1, ROUNDS + 1):
        targets = list(np.random.default_rng(number).normal(size=(CLIENTS, 5)).astype(np.float32))
        state, size = train_round(state, targets)
        for one in metrics:
            await one.release({"size": size}, number)
        await states.save(state, number)
    states.close()


if __name__ == "__main__":
    fl.framework.set_default_context(FederatedContext(fedstack.create_async_local_execution_context()))
    if int(sys.argv[2]):
        kill_before(int(sys.argv[2]))
    asyncio.run(train(Path(sys.argv[1])))
