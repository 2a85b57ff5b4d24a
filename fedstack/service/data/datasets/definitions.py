"""Converts datasets to and from definitions, the messages that are registered and sent to data workers."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import array_from_proto, write_array
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import check_received, portable
from fedstack.computations.leaves.work_scope import current_policy
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import flatten, is_string, tensor_leaves, type_from_proto, unflatten
from fedstack.computations.values.columns import empty_column
from fedstack.errors import CarrierError, InvalidComputationError
from fedstack.proto.datasets_pb2 import DatasetDefinition, DatasetDefinitions, DatasetStep, FilesSource
from fedstack.service.data.datasets import arrow_files, files, steps
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.elements import ElementFunction, checked_element
from fedstack.service.data.datasets.pipeline import Pipeline
from fedstack.service.data.datasets.rearranging_steps import (
    CacheStep,
    InterleaveStep,
    PrefetchStep,
    ShardStep,
    UnbatchStep,
)
from fedstack.service.data.datasets.sources import (
    ArraysSource,
    ComputationSource,
    ConcatenatedSource,
    GeneratorSource,
    RangeSource,
    Source,
    ZippedSource,
    registered_generator,
)
from fedstack.service.data.datasets.window_steps import PaddedBatchStep, Padding, WindowStep
from fedstack.service.data.reading.blocks import column_over, stacked

_THE_DATASET = "the definition of a dataset"


def definition_of(dataset: Pipeline, destination: Destination) -> DatasetDefinition:
    """Returns the message that defines a dataset.

    Args:
      dataset: The dataset.
      destination: The destination of the message, which determines the form in which functions are sent.

    Raises:
      CarrierError: If a function cannot be sent to the destination, a generator has no name, or the source exists only
        in this process.
    """
    proto = DatasetDefinition(element=dataset.source.element.to_proto())
    _write_source(dataset.source, proto, destination)
    proto.step.extend(written_steps(dataset.steps, destination))
    return proto


def written_steps(done: Iterable[steps.Step], destination: Destination) -> Iterator[DatasetStep]:
    """Yields the messages that define steps; see `definition_of`."""
    return (_WRITTEN_STEPS[type(step)](step, destination) for step in done)


def read_definition(proto: DatasetDefinition) -> Dataset:
    """Returns the dataset that a message defines, without opening files or loading functions.

    Raises:
      FedstackError: If the message is invalid, or contains a function that the current carrier policy does not permit.
    """
    kind = proto.WhichOneof("source")
    if kind is None:
        raise InvalidComputationError(
            f"Expected a source that this release supports in {_THE_DATASET}, found no source or an unknown kind of "
            "source; install the same release of fedstack in both processes"
        )
    element = checked_element(type_from_proto(proto.element))
    source = _SOURCES[kind](proto, element)
    if not source.element.is_equivalent_to(element):
        raise InvalidComputationError(
            f"Expected elements of type {element} in {_THE_DATASET}, found elements of type {source.element}"
        )
    return with_steps(Dataset(source), proto.step)


def with_steps(dataset: Dataset, protos: Iterable[DatasetStep]) -> Dataset:
    """Returns a dataset to which further steps are applied; see `read_definition`."""
    for step in protos:
        name = step.WhichOneof("kind")
        if name is None:
            raise InvalidComputationError(
                f"Expected a step that this release supports in {_THE_DATASET}, found an empty step or an unknown kind "
                "of step; install the same release of fedstack in both processes"
            )
        dataset = _STEPS[name](dataset, step)
    return dataset


@functools.singledispatch
def _write_source(source: Source, proto: DatasetDefinition, destination: Destination) -> None:
    raise CarrierError(
        f"The dataset cannot be sent to other processes, because its source {source!r} exists only in this process; "
        "apply its steps before distribute, or to the distributed dataset"
    )


@_write_source.register
def _(source: RangeSource, proto: DatasetDefinition, destination: Destination) -> None:
    numbers = source.numbers
    proto.range.start, proto.range.stop, proto.range.step = numbers.start, numbers.stop, numbers.step


@_write_source.register
def _(source: ArraysSource, proto: DatasetDefinition, destination: Destination) -> None:
    proto.arrays.rows = rows = len(source.column)
    if rows:
        (whole,) = stacked(source.column, rows, source.element, _THE_DATASET).items()
        for array, (path, tensor) in zip(flatten(whole, source.element), tensor_leaves(source.element)):
            write_array(proto.arrays.array.add(), array, tensor.dtype, path=path)


@_write_source.register
def _(source: files.FilesSource, proto: DatasetDefinition, destination: Destination) -> None:
    described = FilesSource(format=source.format, path=source.paths, delimiter=source.delimiter)
    described.client, described.parts[:] = source.client, source.parts
    proto.files.CopyFrom(described)


@_write_source.register
def _(source: GeneratorSource, proto: DatasetDefinition, destination: Destination) -> None:
    if not source.name:
        raise CarrierError(
            f"Expected a generator that is registered under a name, found {source!r}; pass a name to "
            "Dataset.from_generator, and import the module with that call in the other process too"
        )
    proto.generator.name, proto.generator.splits = source.name, source.num_splits


@_write_source.register
def _(source: ComputationSource, proto: DatasetDefinition, destination: Destination) -> None:
    proto.computation.computation.CopyFrom(portable(source.function.computation, destination))
    proto.computation.splits = source.splits or 0


@_write_source.register
def _(source: ZippedSource, proto: DatasetDefinition, destination: Destination) -> None:
    _write_parts(source.parts, proto.zipped, destination)


@_write_source.register
def _(source: ConcatenatedSource, proto: DatasetDefinition, destination: Destination) -> None:
    _write_parts(source.parts, proto.concatenated, destination)


def _write_parts(parts: tuple[Pipeline, ...], proto: DatasetDefinitions, destination: Destination) -> None:
    proto.dataset.extend(definition_of(part, destination) for part in parts)


def _read_arrays(proto: DatasetDefinition, element: Type) -> Source:
    rows, tensors = proto.arrays.rows, list(tensor_leaves(element))
    if not rows:
        return ArraysSource(element, empty_column(element))
    if len(proto.arrays.array) != len(tensors):
        found = len(proto.arrays.array)
        raise InvalidComputationError(f"Expected {len(tensors)} arrays in {_THE_DATASET}, found {found}")
    arrays: list[NDArray[Any]] = []
    for array, (path, tensor) in zip(proto.arrays.array, tensors):
        shape = None if tensor.shape is None else (rows, *tensor.shape)
        dtype = np.dtype(np.str_) if is_string(tensor) else tensor.dtype
        arrays.append(cast("NDArray[Any]", array_from_proto(array, dtype, shape, path=path or _THE_DATASET)))
    return ArraysSource(element, column_over(unflatten(iter(arrays), element), element, rows, _THE_DATASET))


def _read_files(proto: DatasetDefinition, element: Type) -> Source:
    found = proto.files
    if found.format not in _FILES or not found.path:
        raise InvalidComputationError(
            f"Expected files of a format that this release supports in {_THE_DATASET}, found no files or an unknown "
            "format; install the same release of fedstack in both processes"
        )
    if len(found.parts) not in (0, len(found.path)):
        raise InvalidComputationError(
            f"Expected the number of parts of each file in {_THE_DATASET}, found numbers for {len(found.parts)} files"
        )
    return _FILES[found.format](
        element, tuple(found.path), delimiter=found.delimiter, client=found.client, parts=found.parts
    )


def _read_generator(proto: DatasetDefinition, element: Type) -> Source:
    source = registered_generator(proto.generator.name)
    if source.num_splits != proto.generator.splits:
        raise InvalidComputationError(
            f"Expected {proto.generator.splits} splits, found {source.num_splits} in the {source!r} that is registered "
            "in this process; pass the same num_splits to Dataset.from_generator in both processes"
        )
    return source


def _read_computation(proto: DatasetDefinition, element: Type) -> Source:
    function = ElementFunction(_admitted(proto.computation.computation), _THE_DATASET)
    return ComputationSource(function, proto.computation.splits or None)


def _read_parts(proto: DatasetDefinitions) -> tuple[Pipeline, ...]:
    if not proto.dataset:
        raise InvalidComputationError(f"Expected {_THE_DATASET} to contain datasets to zip or concatenate, found none")
    return tuple(read_definition(part) for part in proto.dataset)


_SOURCES: dict[str, Callable[[DatasetDefinition, Type], Source]] = {
    "range": lambda p, t: Dataset.range(p.range.start, p.range.stop, p.range.step).source,
    "arrays": _read_arrays,
    "files": _read_files,
    "generator": _read_generator,
    "computation": _read_computation,
    "zipped": lambda p, t: ZippedSource(_read_parts(p.zipped)),
    "concatenated": lambda p, t: ConcatenatedSource(_read_parts(p.concatenated)),
}
_FILES: dict[int, Callable[..., Source]] = {
    FilesSource.NPY: files.NpyFiles,
    FilesSource.NPZ: files.NpzFiles,
    FilesSource.CSV: arrow_files.CsvFiles,
    FilesSource.JSON_LINES: arrow_files.JsonLinesFiles,
    FilesSource.PARQUET: arrow_files.ParquetFiles,
    FilesSource.ARROW: arrow_files.ArrowIpcFiles,
}


_WRITTEN_STEPS: dict[type[steps.Step], Callable[[Any, Destination], DatasetStep]] = {
    steps.MapStep: lambda step, there: DatasetStep(map=portable(step.function.computation, there)),
    steps.FilterStep: lambda step, there: DatasetStep(filter=portable(step.function.computation, there)),
    steps.BatchStep: lambda step, _: DatasetStep(
        batch=DatasetStep.Batch(size=step.number, drop_remainder=step.drop_remainder)
    ),
    steps.ShuffleStep: lambda step, _: DatasetStep(
        shuffle=DatasetStep.Shuffle(
            buffer_size=step.number, seed=step.seed.to_bytes((step.seed.bit_length() + 7) // 8, "big")
        )
    ),
    steps.RepeatStep: lambda step, _: DatasetStep(repeat=DatasetStep.Repeat(count=step.number)),
    steps.TakeStep: lambda step, _: DatasetStep(take=step.number),
    steps.SkipStep: lambda step, _: DatasetStep(skip=step.number),
    steps.EnumerateStep: lambda step, _: DatasetStep(enumerate=step.start),
    PrefetchStep: lambda step, _: DatasetStep(prefetch=step.number),
    PaddedBatchStep: lambda step, _: DatasetStep(
        padded_batch=DatasetStep.PaddedBatch(
            size=step.number, drop_remainder=step.drop_remainder, padding=map(_written_padding, step.paddings)
        )
    ),
    WindowStep: lambda step, _: DatasetStep(
        window=DatasetStep.Window(
            size=step.number, shift=step.shift, stride=step.stride, drop_remainder=step.drop_remainder
        )
    ),
    InterleaveStep: lambda step, there: DatasetStep(
        interleave=DatasetStep.Interleave(
            function=portable(step.function.computation, there),
            cycle_length=step.cycle_length,
            block_length=step.block_length,
        )
    ),
    UnbatchStep: lambda step, _: DatasetStep(unbatch=DatasetStep.Nothing()),
    ShardStep: lambda step, _: DatasetStep(shard=DatasetStep.Shard(shards=step.number, index=step.index)),
    CacheStep: lambda step, _: DatasetStep(cache=DatasetStep.Nothing()),
}
_STEPS: dict[str, Callable[[Dataset, DatasetStep], Dataset]] = {
    "map": lambda dataset, step: dataset.map(_admitted(step.map)),
    "filter": lambda dataset, step: dataset.filter(_admitted(step.filter)),
    "batch": lambda dataset, step: dataset.batch(step.batch.size, step.batch.drop_remainder),
    "shuffle": lambda d, step: d.shuffle(step.shuffle.buffer_size, int.from_bytes(step.shuffle.seed, "big")),
    "repeat": lambda d, step: d.repeat(step.repeat.count if step.repeat.HasField("count") else None),
    "take": lambda dataset, step: dataset.take(step.take),
    "skip": lambda dataset, step: dataset.skip(step.skip),
    "enumerate": lambda dataset, step: dataset.enumerate(step.enumerate),
    "prefetch": lambda dataset, step: dataset.prefetch(step.prefetch),
    "padded_batch": lambda dataset, step: _padded_batch(dataset, step.padded_batch),
    "window": lambda dataset, step: dataset.window(
        step.window.size, step.window.shift, step.window.stride, step.window.drop_remainder
    ),
    "interleave": lambda dataset, step: dataset.interleave(
        _admitted(step.interleave.function), step.interleave.cycle_length, step.interleave.block_length
    ),
    "unbatch": lambda dataset, step: dataset.unbatch(),
    "shard": lambda dataset, step: dataset.shard(step.shard.shards, step.shard.index),
    "cache": lambda dataset, step: dataset.cache(only_for_repetitions=True),
}


def _written_padding(padding: Padding) -> DatasetStep.Padding:
    proto = DatasetStep.Padding(size=[-1 if size is None else size for size in padding.sizes])
    value = padding.value
    write_array(proto.value, value, np.dtype(np.str_) if isinstance(value, bytes) else value.dtype, ())
    return proto


def _padded_batch(dataset: Dataset, step: DatasetStep.PaddedBatch) -> Dataset:
    element = dataset.element_type
    tensors = [tensor for _, tensor in tensor_leaves(element)]
    if len(step.padding) != len(tensors):
        raise InvalidComputationError(f"Expected {len(tensors)} paddings in {_THE_DATASET}, found {len(step.padding)}")
    shapes = unflatten(iter([list(padding.size) for padding in step.padding]), element)
    values = [
        array_from_proto(padding.value, np.dtype(np.str_) if is_string(tensor) else tensor.dtype, (), path=_THE_DATASET)
        for padding, tensor in zip(step.padding, tensors)
    ]
    return dataset.padded_batch(step.size, shapes, unflatten(iter(values), element), step.drop_remainder)


def _admitted(computation: computation_pb2.Computation) -> computation_pb2.Computation:
    check_received(computation, current_policy())
    return computation
