"""Describes datasets to dispatchers, and defines the options with which datasets are read."""

import enum
import hashlib
import math
import zlib
from collections.abc import Iterable, Sequence

import attrs
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.work_scope import current_policy, current_scope
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.columns import empty_column
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import CarrierError, InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import name_text
from fedstack.proto.data_service_pb2 import (
    DatasetDescription,
    DescribeDatasetRequest,
    PassCursor,
    RegisterDatasetRequest,
)
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.pass_plan import Guarantee
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.definitions import definition_of, with_steps, written_steps
from fedstack.service.data.datasets.files import FilesSource
from fedstack.service.data.datasets.pipeline import Pipeline
from fedstack.service.data.datasets.sources import ArraysSource
from fedstack.service.data.datasets.steps import Step
from fedstack.service.data.dispatcher.datasets import MOST_FILES
from fedstack.transport.peers.dispatcher_stub import DispatcherStub


class ShardingPolicy(enum.Enum):
    """How the elements of a dataset are divided among data workers.

    Attributes:
      OFF: Each worker reads the whole dataset.
      DYNAMIC: Each element is read once, by one of the workers. Faster workers read more elements.
      FILE: Each file is read by one worker: file `i` by the worker at index `i % n` in the dispatcher's
        `worker_addresses`, of which there are `n`. If that worker is not available, another worker reads the file. At
        most 100,000 files are supported.
      DATA: The worker at each of the `n` addresses reads the whole dataset, and sends every `n`-th element.
      FILE_OR_DATA, HINT: Not supported.
    """

    OFF = "off"
    DYNAMIC = "dynamic"
    FILE = "file"
    DATA = "data"
    FILE_OR_DATA = "file_or_data"
    HINT = "hint"


_NAMES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}
_FORMS = "ShardingPolicy.OFF ('parallel_epochs'), DYNAMIC ('distributed_epoch'), FILE or DATA"
_NOT_OFFERED = (ShardingPolicy.FILE_OR_DATA, ShardingPolicy.HINT)


def checked_policy(mode: object) -> ShardingPolicy:
    """Returns the policy for a `processing_mode`.

    Raises:
      TypeMismatchError: If the mode is neither a policy nor a string.
      InvalidValueError: If the policy is unknown or not supported.
    """
    if isinstance(mode, str):
        known = {**_NAMES, **{one.value: one for one in _NOT_OFFERED}}
        if mode not in known:
            raise InvalidValueError(f"Expected processing_mode to be {_FORMS}, found {mode!r}")
        mode = known[mode]
    if not isinstance(mode, ShardingPolicy):
        raise TypeMismatchError(f"Expected processing_mode to be {_FORMS}, found {describe(mode)}")
    if mode in _NOT_OFFERED:
        raise InvalidValueError(
            f"Expected processing_mode to be {_FORMS}, found {mode}, which is not supported; use ShardingPolicy.FILE "
            "or ShardingPolicy.DATA, or add a shard(n, index) step"
        )
    return mode


_CHECK_BYTES = 4


def written_cursor(cursor: PassCursor) -> bytes:
    """Returns a cursor as bytes for the user: the message and a checksum. The inverse of `read_cursor`."""
    content = cursor.SerializeToString()
    return content + _check_sum(content)


def read_cursor(content: object) -> PassCursor:
    """Returns the cursor that `written_cursor` converted to bytes.

    Raises:
      TypeMismatchError: If `content` is not bytes.
      InvalidValueError: If an iterator's `cursor()` did not return these bytes.
    """
    if not isinstance(content, bytes):
        raise TypeMismatchError(
            f"Expected resume to be the bytes that an iterator's cursor() returned, found {describe(content)}"
        )
    content, check_sum = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
    try:
        found = PassCursor.FromString(content)
    except DecodeError:
        found = PassCursor()
    if check_sum != _check_sum(content) or not found.consumer or not found.digest:
        raise InvalidValueError(
            "Expected resume to be the bytes that an iterator's cursor() returned, found "
            f"{len(content) + len(check_sum)} bytes that are not a cursor or have been modified"
        )
    return found


def position_of(cursor: PassCursor) -> Position:
    """Returns the position of a cursor within its pass."""
    return Position(frozenset(cursor.finished), {one.range: one.rows for one in cursor.begun}, cursor.left_out)


def _check_sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "big")


# Functions may be sent by value. The carrier policy of each worker determines which functions the worker accepts.
_WORKERS = Destination(takes_code=True)
_ID_CHARACTERS = 32


@attrs.frozen
class Terms:
    """The options with which a dataset is read.

    Attributes:
      policy: The division of the dataset among workers.
      guarantee: The guarantee for the delivery of each element if workers or consumers are lost.
      job_name: The job that consumers share; empty for passes of a single consumer.
      target_workers: The workers to read from: `"AUTO"`, `"ANY"` or `"LOCAL"`.
      max_requests: The maximum number of blocks that are requested or wait in this process; by default a few for each
        worker.
      timeout: The maximum time for which the dispatcher may be unavailable, in seconds.
      resume: The cursor from which to resume, if any.
    """

    policy: ShardingPolicy
    guarantee: Guarantee = Guarantee.AT_MOST_ONCE
    job_name: str = ""
    target_workers: str = "AUTO"
    max_requests: int | None = None
    timeout: float = 60.0
    resume: PassCursor | None = None


@attrs.frozen(eq=False)
class KnownDataset:
    """A dataset that is, or can be, registered with a dispatcher.

    Attributes:
      description: The description of the dataset.
      after: The steps that apply to the elements of all splits together.
      definition: The serialized definition; `None` if the dispatcher already has the definition.
    """

    description: DatasetDescription
    after: tuple[Step, ...]
    definition: bytes | None = None

    @property
    def split_element(self) -> Type:
        """The type of a split's elements."""
        return type_from_proto(self.description.split_element)

    @property
    def element(self) -> Type:
        """The type of the dataset's elements."""
        return type_from_proto(self.description.element)

    @property
    def cardinality(self) -> float | None:
        """The number of elements of the dataset, which may be infinite; `None` if unknown."""
        found = self.description
        return math.inf if found.is_endless else found.cardinality if found.HasField("cardinality") else None

    @property
    def size(self) -> float | None:
        """The total number of elements of the splits, which may be infinite; `None` if unknown."""
        size, splits = self.cardinality, self.description.num_splits
        if not self.after:
            return size
        # If the size after these steps is the size that one element per split would yield, each split is assumed to be
        # one element.
        return splits if size is not None and size == _size_after(splits, self.after) else None


def described(dataset: Pipeline, dataset_id: str = "", client_column: str = "") -> KnownDataset:
    """Returns the description and the definition with which a dataset can be registered.

    Args:
      dataset: The dataset.
      dataset_id: The id under which to register the dataset; by default a prefix of its digest.
      client_column: The member of the elements that contains the client's id, for a dataset that is registered by
        client; otherwise empty.

    Raises:
      CarrierError: If a function or a source cannot be serialized.
    """
    written = definition_of(dataset, _WORKERS)
    written.client_column = client_column
    definition = written.SerializeToString(deterministic=True)
    digest = hashlib.sha256(definition).digest()
    division = dataset.divided()
    cardinality = dataset.cardinality
    description = DatasetDescription(
        dataset_id=dataset_id or digest.hex()[:_ID_CHARACTERS],
        digest=digest,
        element=dataset.element_type.to_proto(),
        num_splits=division.split.num_splits,
        split_element=division.split.element_type.to_proto(),
        after=written_steps(division.after, _WORKERS),
        cardinality=None if cardinality is None or cardinality == math.inf else int(cardinality),
        is_endless=cardinality == math.inf,
        client_column=client_column,
        definition_bytes=len(definition),
        file_splits=_file_splits(division.split),
    )
    return KnownDataset(description, division.after, definition)


def known_dataset(description: DatasetDescription, policy: CarrierPolicy | None) -> KnownDataset:
    """Returns the dataset that a dispatcher has described.

    Args:
      description: The dispatcher's description.
      policy: The policy that determines which functions may run in this process; by default the current policy.

    Raises:
      CarrierError: If the policy does not permit a function that must run in this process.
    """
    element = type_from_proto(description.split_element)
    with current_scope().under(policy or current_policy()).entered():
        try:
            rest = with_steps(Dataset(ArraysSource(element, empty_column(element))), description.after)
        except CarrierError as error:
            raise CarrierError(
                f"Some functions of the dataset {name_text(description.dataset_id)!r} must run in this process, "
                "because they follow a step such as batch or shuffle; permit these functions, as in "
                f"policy=fedstack.leaves.CarrierPolicy(modules=['mine']): {error}"
            ) from error
    return KnownDataset(description, rest.steps)


async def registered(known: KnownDataset, stub: DispatcherStub, by_name: bool = False) -> DatasetDescription:
    """Registers a dataset with a dispatcher unless it is already registered, and returns the dispatcher's description.

    The definition is sent only if the dispatcher does not have it.

    Args:
      known: The dataset.
      stub: The stub for calls to the dispatcher.
      by_name: Whether the dataset must be registered under its id.

    Raises:
      InvalidValueError: If another dataset is registered under the id, or the dataset is not registered and `known` has
        no definition.
    """
    said = known.description
    request = DescribeDatasetRequest(may_lack=known.definition is not None)
    if by_name:
        request.dataset_id = said.dataset_id
    else:
        request.digest = said.digest
    found = await stub.describe(request)
    if found.digest == said.digest or known.definition is None:
        return found
    return await stub.register(RegisterDatasetRequest(dataset=said), memoryview(known.definition))


def _file_splits(pipeline: Pipeline) -> Sequence[int]:
    source = pipeline.source
    if not isinstance(source, FilesSource) or pipeline.num_splits != source.num_splits:
        return ()
    return (source.parts or [1] * len(source.paths)) if len(source.paths) <= MOST_FILES else ()


def _size_after(size: float | None, steps: Iterable[Step]) -> float | None:
    for step in steps:
        size = step.size(size)
    return size
