"""What is read at a data worker is the same over a connection and without one."""

import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from reading import read, whole

import fedstack
from fedstack.service.data import Dataset
from fedstack.service.data.serving.local_servers import GRPC, LOCAL

PROTOCOLS = pytest.mark.parametrize("protocol", [GRPC, LOCAL])


@fedstack.python_computation([np.int64], np.int64)
def square(x):
    return x * x


@PROTOCOLS
def test_a_worker_reads_what_the_dataset_has(protocol: str, catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.range(100_000).map(square).batch(7)
    worker = start_worker(protocol)
    found = read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)
    np.testing.assert_equal(found, list(dataset))
