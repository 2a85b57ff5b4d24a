"""The training of federated_averaging.py with the clients' images at two data workers, and not in this process.

The images are in a file that data workers read. This process registers what to read, and in each round sends the model
and references to the clients' images to two executor workers. Those read the images from the data workers.
Run it: python examples/client_data.py
"""

import argparse
import multiprocessing
import tempfile
from collections import OrderedDict
from pathlib import Path

import federated_averaging as averaging
import federated_language as fl
import numpy as np

import fedstack
from fedstack.observe import Observer, PhaseEnded, add_observer
from fedstack.program import DatasetDataSource
from fedstack.service import local_worker_pool
from fedstack.service.data import Dataset, DispatchServer, WorkerConfig, WorkerServer, register_dataset

parser = argparse.ArgumentParser(description="Trains on images that data workers have.")
parser.add_argument("--clients", type=int, default=100)
parser.add_argument("--rounds", type=int, default=20)

MODEL = averaging.MODEL
ROWS = fl.SequenceType(OrderedDict(image=(np.float32, [averaging.PIXELS]), digit=np.int32))
CLIENT = OrderedDict(data=ROWS, seed=np.uint64, number=np.int32)


def arrays_of(rows):
    rows = list(rows)
    return {name: np.stack([row[name] for row in rows]) for name in ("image", "digit")}


@fedstack.python_computation([MODEL, CLIENT], OrderedDict(model=MODEL, examples=np.float32))
def train_on_client(model, client):
    size, seed, number = averaging.BATCH_SIZE, int(client["seed"]), int(client["number"])
    batches = fedstack.batches(arrays_of(client["data"]), size, shuffle_seed=seed, round=number)
    return averaging.train_on_client.__wrapped__(model, batches)


@fedstack.python_computation([MODEL, ROWS], OrderedDict(accuracy=np.float64, loss=np.float64, examples=np.float64))
def evaluate_on_client(model, rows):
    return averaging.evaluate_on_client.__wrapped__(model, fedstack.batches(arrays_of(rows), 32))


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(CLIENT, fl.CLIENTS))
def train_round(model, clients):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients))
    return fl.federated_mean(trained.model, weight=trained.examples)


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def evaluate(model, data):
    metrics = fl.federated_map(evaluate_on_client, (fl.federated_broadcast(model), data))
    return fl.federated_mean(metrics, weight=metrics.examples)


def write_images(folder, num_clients):
    """Writes the images of all clients into one file, and those that are held out into another."""
    training, evaluation = averaging.load_clients(num_clients, seed=0)
    held_out = [{name: np.concatenate([batch[name] for batch in part]) for name in ("image", "digit")}
                for part in evaluation]  # fmt: skip
    for name, parts in (("training", training), ("held_out", held_out)):
        columns = {column: np.concatenate([part[column] for part in parts]) for column in ("image", "digit")}
        owners = np.repeat(np.arange(num_clients), [len(part["digit"]) for part in parts])
        np.savez(folder / f"{name}.npz", client=owners, **columns)


def serve_data(dispatcher, folder):
    WorkerServer(WorkerConfig(dispatcher, data_roots=folder)).join()


class Traffic(Observer):
    """Counts the bytes of all that goes from this process to the executor workers, and comes back."""

    def __init__(self):
        self.bytes = 0

    def observe(self, event):
        if isinstance(event, PhaseEnded):
            self.bytes += event.bytes_sent + event.bytes_received


def new_model():
    rng = np.random.default_rng(0)
    model = OrderedDict((name, np.zeros(shape, dtype)) for name, (dtype, shape) in MODEL.items())
    for name, fan_in in (("hidden", averaging.PIXELS), ("output", averaging.HIDDEN)):
        model[name] = rng.normal(0, np.sqrt(2 / fan_in), model[name].shape).astype(np.float32)
    return model


def clients_of(source, number):
    references = source.select(source.client_ids)
    return [
        OrderedDict(data=data, seed=seed, number=number)
        for data, seed in zip(references, fedstack.client_seeds(0, len(references)))
    ]


def main(options, folder):
    write_images(folder, options.clients)
    images, held_out = (Dataset.from_npz(folder / f"{name}.npz") for name in ("training", "held_out"))
    spawn = multiprocessing.get_context("spawn")
    with DispatchServer() as dispatcher, local_worker_pool(2, data_services=[dispatcher.target]) as executors:
        data_workers = [spawn.Process(target=serve_data, args=(dispatcher.target, folder)) for _ in range(2)]
        for worker in data_workers:
            worker.start()
        # The dispatcher gets no images, but where they are and what to do with them.
        register_dataset(dispatcher.target, images.by_client("client"), dataset_id="images")
        register_dataset(dispatcher.target, images.concatenate(images).by_client("client"), dataset_id="twice")
        register_dataset(dispatcher.target, held_out.by_client("client"), dataset_id="held out")
        with (
            DatasetDataSource(dispatcher.target, "images") as training,
            DatasetDataSource(dispatcher.target, "twice") as twice,
            DatasetDataSource(dispatcher.target, "held out") as evaluation,
            fedstack.create_sync_remote_execution_context(executors),
        ):
            model = new_model()
            for number in range(options.rounds):
                model = train_round(model, clients_of(training, number))
                metrics = evaluate(model, evaluation.select(evaluation.client_ids))
                print(f"round {number + 1}: accuracy {metrics['accuracy']:.4f}, loss {metrics['loss']:.4f}")
            crossed = []
            for source in (training, twice):
                rounds = [Traffic() for _ in range(8)]
                for traffic in rounds:
                    with add_observer(traffic, direct=True):
                        train_round(model, clients_of(source, options.rounds))
                # A round takes more if clients move from a busy worker to an idle one, which gets the model again.
                crossed.append(min(traffic.bytes for traffic in rounds))
            print(f"a round took {crossed[0]:,} bytes through this process: the model, and references to data")
            # The times in messages are a few bytes longer or shorter.
            examples = round((crossed[1] - crossed[0]) / 1000)
            print(f"kilobytes of examples that crossed it: {examples} (what twice the examples take more)")
        for worker in data_workers:
            worker.terminate()
            worker.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args(), Path(temporary).resolve())
