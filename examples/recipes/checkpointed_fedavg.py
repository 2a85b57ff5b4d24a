"""FedAvg that is killed and goes on with the same bits: a run in one folder (McMahan et al., 2017).

The run saves the model and the iterator that draws clients."""

import argparse
import asyncio
from pathlib import Path

import federated_language as fl
import numpy as np
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner
from fedstack.program import FederatedContext, PlotReleaseManager, Run, TableDataSource

PER_ROUND, STEPS, RATE, SEED = 10, 10, np.float32(0.3), 0
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=20, help="how many rounds, with those that are there (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for run and picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
x, y = np.float32(load_digits().data / 16), np.int32(load_digits().target)
held_out, rest = np.split(np.random.default_rng(SEED).permutation(len(y)), [360])
split = DirichletPartitioner(20, alpha=0.3).partition(y[rest], seed=SEED)
source = TableDataSource({"c": split.owners, "x": x[rest], "y": y[rest]}, "c", seed=SEED)
MODEL, ROWS = (np.float32, [x.shape[1], 1 + int(y.max())]), source.federated_type.member


@fedstack.python_computation([MODEL, ROWS], {"model": MODEL, "rows": np.float32})
def train_on_client(model, rows):
    for _ in range(STEPS):
        odds = np.exp(rows["x"] @ model)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(len(odds[0]), dtype=np.float32)[rows["y"]]
        model = model - RATE * rows["x"].T @ error / np.float32(len(error))
    return {"model": model, "rows": np.float32(len(rows["y"]))}


@fedstack.python_computation([MODEL], np.float32)
def accuracy_of(model):
    return ((x[held_out] @ model).argmax(axis=1) == y[held_out]).mean(dtype=np.float32)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def train_round(model, rows):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), rows))
    model = fl.federated_mean(trained.model, weight=trained.rows)
    return model, fl.federated_map(accuracy_of, model)


async def train():
    with Run(folder := options.out / "checkpointed_fedavg", seed=SEED) as run:
        picture = PlotReleaseManager(f"{folder}.svg", state_manager=run.states)
        metrics = fl.program.GroupingReleaseManager([run.metrics, picture])
        state = {"model": np.zeros(MODEL[1], np.float32), "clients": source.iterator()}
        found, last = await run.states.load_latest(state)
        state = found or state
        for number in range(last + 1, options.rounds + 1):
            state["model"], accuracy = train_round(state["model"], state["clients"].select(PER_ROUND))
            await metrics.release({"accuracy": accuracy}, number)
            await run.states.save(state, number)
            print(run.metrics.rows()[-1], flush=True)
    print("accuracy {accuracy:.2f} after {round} rounds\npicture:".format(**run.metrics.rows()[-1]), f"{folder}.svg")


fl.framework.set_default_context(FederatedContext(fedstack.create_async_local_execution_context()))
try:
    asyncio.run(train())
except KeyboardInterrupt:
    parser.exit(130, "stopped by Ctrl-C; start the script again, and it goes on\n")
