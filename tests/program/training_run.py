"""A program that trains and is killed at a moment that the caller chooses: python training_run.py FOLDER ALGORITHM N

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
from fedstack.data import headed_file
from fedstack.data.client_states import state_shards
from fedstack.program import CSVFileReleaseManager, FederatedContext, FileProgramStateManager, JSONLinesReleaseManager

ROUNDS, CLIENTS, PER_ROUND = 6, 6, 4
MODEL = fl.TensorType(np.float32, [5])
FIRST = np.zeros(5, np.float32)
ADAM = fl.to_type({"model": MODEL, "mean": MODEL, "square": MODEL})
SCAFFOLD = fl.to_type({"model": MODEL, "control": MODEL})
MEMBER = fl.to_type({"target": MODEL, "control": MODEL})


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


@fedstack.python_computation([MODEL, MODEL], MODEL)
def plus(model, change):
    return model + change


@fedstack.python_computation([SCAFFOLD, MEMBER], [MODEL, MODEL, MODEL])
def corrected(server, member):
    """Takes two steps without the drift of the client; returns the change, that of the control, and the control."""
    model = server["model"]
    for _ in range(2):
        model = model - np.float32(0.3) * (model - member["target"] - member["control"] + server["control"])
    control = member["control"] - server["control"] + (server["model"] - model) / np.float32(0.6)
    return model - server["model"], control - member["control"], control


@fedstack.python_computation([SCAFFOLD, MODEL, MODEL], SCAFFOLD)
def scaffold(state, change, control):
    share = np.float32(PER_ROUND / CLIENTS)
    return {"model": state["model"] + change, "control": state["control"] + share * control}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(MODEL, fl.CLIENTS))
def fedavg_round(model, targets):
    change = fl.federated_mean(fl.federated_map(step_of_client, (fl.federated_broadcast(model), targets)))
    return fl.federated_map(plus, (model, change)), fl.federated_map(size_of, change)


@fl.federated_computation(fl.FederatedType(ADAM, fl.SERVER), fl.FederatedType(MODEL, fl.CLIENTS))
def fedadam_round(state, targets):
    model = fl.federated_broadcast(fl.federated_map(model_of, state))
    change = fl.federated_mean(fl.federated_map(step_of_client, (model, targets)))
    return fl.federated_map(adam, (state, change)), fl.federated_map(size_of, change)


@fl.federated_computation(fl.FederatedType(SCAFFOLD, fl.SERVER), fl.FederatedType(MEMBER, fl.CLIENTS))
def scaffold_round(state, members):
    found = fl.federated_map(corrected, (fl.federated_broadcast(state), members))
    change, control = fl.federated_mean(found[0]), fl.federated_mean(found[1])
    return fl.federated_map(scaffold, (state, change, control)), fl.federated_map(size_of, change), found[2]


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
    headed_file.write_parts = state_shards.write_parts = counted(headed_file.write_parts)


async def train(folder: Path, algorithm: str) -> None:
    states = FileProgramStateManager(folder / "states", keep_total=2, keep_every_k=3)
    controls = fedstack.ClientStates(folder / "controls", like=FIRST, state_manager=states)
    metrics = [
        CSVFileReleaseManager(folder / "metrics.csv", state_manager=states),
        JSONLinesReleaseManager(folder / "metrics.jsonl", state_manager=states),
    ]
    parts = {"fedavg": (), "fedadam": ("model", "mean", "square"), "scaffold": ("model", "control")}[algorithm]
    state = dict.fromkeys(parts, FIRST) if parts else FIRST
    try:
        found, version = await states.load_latest(state)
        state = state if found is None else found
        for number in range(version + 1, ROUNDS + 1):
            chance = np.random.default_rng(number)
            ids = [f"client {one}" for one in sorted(chance.choice(CLIENTS, PER_ROUND, replace=False))]
            targets = list(chance.normal(size=(PER_ROUND, 5)).astype(np.float32))
            if algorithm == "scaffold":
                members = [{"target": one, "control": other} for one, other in zip(targets, controls.select(ids))]
                state, size, _ = scaffold_round(state, members)
            else:
                state, size = (fedavg_round if algorithm == "fedavg" else fedadam_round)(state, targets)
            for one in metrics:
                await one.release({"size": size}, number)
            await states.save(state, number)
    finally:
        states.close()


def main(folder: Path, algorithm: str) -> None:
    context = FederatedContext(fedstack.create_async_local_execution_context())
    with fl.framework.get_context_stack().install(context):
        asyncio.run(train(folder, algorithm))


if __name__ == "__main__":
    if int(sys.argv[3]):
        kill_before(int(sys.argv[3]))
    main(Path(sys.argv[1]), sys.argv[2])
