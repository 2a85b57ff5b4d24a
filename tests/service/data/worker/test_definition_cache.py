"""Definitions are what their digests say, bring what the worker allows, and are fetched once."""

import asyncio
import hashlib

import federated_language as fl
import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from data_reading import blocks_of, read, whole

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.values.columns import Column
from fedstack.errors import CarrierError, FedstackError, InvalidComputationError, InvalidValueError, ResourceLimitError
from fedstack.proto.datasets_pb2 import DatasetDefinition
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.service.data.reading.readers import reader_at
from fedstack.transport.peers.io_loop import io_loop

INT = fl.TensorType(np.int64)
CAPTURED = 3


@fedstack.python_computation([np.int64], np.int64)
def captures(x):
    return x + CAPTURED


def test_another_definition_than_that_of_the_digest_is_refused(catalogue: Catalogue, start_worker: StartWorker) -> None:
    digest, other = catalogue.register(Dataset.range(4)), catalogue.register(Dataset.range(1000, 1004))
    catalogue.definitions[digest] = catalogue.definitions[other]
    worker = start_worker()
    with pytest.raises(
        InvalidValueError, match=f"Expected the definition of dataset {digest.hex()[:16]}.*a different digest"
    ):
        read(worker.target, whole(digest), INT)
    catalogue.register(Dataset.range(4))  # nothing wrong is kept
    assert read(worker.target, whole(digest), INT) == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"\xff" * 30, DatasetDefinition().SerializeToString() or b"\x52\x00"])
def test_bytes_that_are_no_definition_are_refused(
    content: bytes, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    digest = hashlib.sha256(content).digest()
    catalogue.definitions[digest] = content
    worker = start_worker()
    with pytest.raises((InvalidValueError, InvalidComputationError, FedstackError), match="Expected"):
        read(worker.target, whole(digest), INT)
    assert read(worker.target, whole(catalogue.register(Dataset.range(2))), INT) == [0, 1]


def test_functions_are_let_in_by_the_policy_alone(catalogue: Catalogue, start_worker: StartWorker) -> None:
    digest = catalogue.register(Dataset.range(2).map(captures))
    with pytest.raises(CarrierError, match="--allow-module test_definition_cache"):
        read(start_worker(policy=CarrierPolicy()).target, whole(digest), INT)
    assert read(start_worker().target, whole(digest), INT) == [3, 4]


def test_a_definition_that_is_too_large_is_refused_before_it_is_sent(
    catalogue: Catalogue, start_worker: StartWorker
) -> None:
    digest = catalogue.register(Dataset.from_arrays(np.zeros(1000)))
    worker = start_worker(limits=DataWorkerLimits(max_definition_bytes=5000))
    with pytest.raises(ResourceLimitError, match=r"at most 5000 bytes in the definition .*--max-definition-bytes"):
        read(worker.target, whole(digest), fl.TensorType(np.float64))


def test_a_definition_is_fetched_once_for_all_who_read_it(catalogue: Catalogue, start_worker: StartWorker) -> None:
    digest = catalogue.register(Dataset.range(10_000))
    worker = start_worker()

    async def work() -> None:
        readers = [reader_at(worker.target) for _ in range(5)]
        found: list[list[Column]] = [[] for _ in readers]
        await asyncio.gather(*(blocks_of(r, whole(digest), INT, f) for r, f in zip(readers, found)))
        assert [sum(map(len, blocks)) for blocks in found] == [10_000] * 5
        for reader in readers:
            await reader.close()

    io_loop.run_sync(work(), 20)
    assert catalogue.defined == 1


def test_definitions_that_were_not_used_for_long_are_fetched_again(
    catalogue: Catalogue, start_worker: StartWorker
) -> None:
    datasets = [catalogue.register(Dataset.from_arrays(np.arange(first, first + 1000))) for first in (0, 1)]
    worker = start_worker(limits=DataWorkerLimits(max_definition_bytes=12_000))
    for digest in (*datasets, datasets[1], datasets[0]):
        assert len(read(worker.target, whole(digest), INT)) == 1000
    assert catalogue.defined == 3
