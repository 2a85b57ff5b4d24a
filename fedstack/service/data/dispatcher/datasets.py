"""Registers datasets and finds them by digest or name."""

import hashlib

from fedstack.errors import InvalidValueError
from fedstack.proto.data_service_pb2 import DatasetDescription, DescribeDatasetRequest
from fedstack.service.data.dispatcher.journal import Tables
from fedstack.service.data.dispatcher.ranges import MOST_NUMBER
from fedstack.service.host.limits import DispatcherLimits, exceeded

MAX_NAME_BYTES = 1000
# Under the sharding policy FILE, each file is a row of a table.
MOST_FILES = 100_000
_DIGEST_BYTES = 32
_NAMED = 5


def check_dataset(dataset: DatasetDescription, limits: DispatcherLimits) -> None:
    """Checks a description of a dataset before the definition has been received.

    Raises:
      InvalidValueError: If the description is invalid.
      ResourceLimitError: If the definition is too large.
    """
    if len(dataset.digest) != _DIGEST_BYTES:
        raise InvalidValueError(f"Expected a digest of {_DIGEST_BYTES} bytes, found {len(dataset.digest)} bytes")
    if len(dataset.dataset_id.encode()) > MAX_NAME_BYTES:
        raise InvalidValueError(f"Expected a dataset_id of at most {MAX_NAME_BYTES} bytes, found a longer dataset_id")
    if dataset.num_splits > MOST_NUMBER:
        raise InvalidValueError(f"Expected at most {MOST_NUMBER} splits, found {dataset.num_splits}")
    files = dataset.file_splits
    if files and (len(files) > MOST_FILES or sum(files) != dataset.num_splits):
        raise InvalidValueError(
            f"Expected at most {MOST_FILES} files with {dataset.num_splits} splits in total, found {sum(files)} splits "
            f"in {len(files)} files"
        )
    size = max(dataset.definition_bytes, dataset.ByteSize())
    if size > limits.max_definition_bytes:
        raise exceeded(limits, "max_definition_bytes", size, "store arrays in files")


def check_definition(dataset: DatasetDescription, definition: memoryview) -> None:
    """Checks that a definition has the digest in the description.

    Raises:
      InvalidValueError: If the digests differ.
    """
    found = hashlib.sha256(definition).digest()
    if found != dataset.digest:
        raise InvalidValueError(
            f"Expected a definition with the digest {dataset.digest.hex()}, found a definition with the digest "
            f"{found.hex()}; the definition was changed in transit, or the description contains the wrong digest: "
            "register the dataset again"
        )


def register(
    tables: Tables, dataset: DatasetDescription, limits: DispatcherLimits, keeps: bool = True
) -> DatasetDescription:
    """Registers a dataset under its name or, if it has no name, under a prefix of its digest.

    A dataset may be registered under several names.

    Args:
      tables: The tables of the journal.
      dataset: The description of the dataset.
      limits: The limits of the dispatcher, which include the maximum number of names.
      keeps: Whether to register the dataset. If false, the function only checks whether the dataset can be registered.

    Returns:
      The registered description, which contains the name.

    Raises:
      InvalidValueError: If another dataset has the name, or the dataset is registered with another description.
      ResourceLimitError: If there are too many names.
    """
    kept = DatasetDescription()
    kept.CopyFrom(dataset)
    kept.dataset_id = name = dataset.dataset_id or dataset.digest.hex()[:_DIGEST_BYTES]
    row = tables.execute("SELECT digest FROM names WHERE dataset_id = ?", (name,)).fetchone()
    if row is None:
        (count,) = tables.execute("SELECT count(*) FROM names").fetchone()
        if count >= limits.max_datasets:
            raise exceeded(limits, "max_datasets")
    elif row[0] != dataset.digest:
        raise InvalidValueError(
            f"The name {name!r} belongs to dataset {row[0].hex()[:32]}, so dataset {dataset.digest.hex()[:32]} cannot "
            "be registered under it; choose another dataset_id"
        )
    known = _described(tables, dataset.digest)
    if known is not None and _lasting(known) != _lasting(kept):
        raise InvalidValueError(
            f"Expected the registered description of dataset {dataset.digest.hex()[:32]}, found a different "
            "description; register the dataset with the release of fedstack that first registered it"
        )
    if keeps:
        tables.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (name, dataset.digest))
        content = kept.SerializeToString()
        tables.execute("INSERT OR REPLACE INTO datasets VALUES (?, ?)", (dataset.digest, content))
    return kept


def _lasting(dataset: DatasetDescription) -> DatasetDescription:
    """Returns the part of a description that never changes.

    The number of elements is excluded, because it changes when files grow.
    """
    kept = DatasetDescription()
    kept.CopyFrom(dataset)
    for field in ("dataset_id", "cardinality", "commit", "protocol", "version"):
        kept.ClearField(field)
    return kept


def find_dataset(tables: Tables, request: DescribeDatasetRequest) -> DatasetDescription:
    """Returns the description of the dataset with a given name or digest.

    Returns:
      The description, which is empty if the dataset is not registered and the request has `may_lack` set.

    Raises:
      InvalidValueError: If the dataset is not registered and `may_lack` is not set. The message lists some registered
        datasets.
    """
    digest = request.digest
    if request.dataset_id:
        row = tables.execute("SELECT digest FROM names WHERE dataset_id = ?", (request.dataset_id,)).fetchone()
        digest = b"" if row is None else row[0]
    found = _described(tables, digest)
    if found is None and request.may_lack:
        return DatasetDescription()
    if found is None:
        wanted = f"id {request.dataset_id!r}" if request.dataset_id else f"digest {request.digest.hex()[:64]}"
        raise InvalidValueError(f"No dataset with {wanted} is registered; {_some(tables)}")
    found.dataset_id = request.dataset_id or found.dataset_id
    return found


def _described(tables: Tables, digest: bytes) -> DatasetDescription | None:
    row = tables.execute("SELECT description FROM datasets WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else DatasetDescription.FromString(row[0])


def _some(tables: Tables) -> str:
    names = [name for (name,) in tables.execute("SELECT dataset_id FROM names ORDER BY dataset_id LIMIT ?", (_NAMED,))]
    (count,) = tables.execute("SELECT count(*) FROM names").fetchone()
    if not count:
        return "the dispatcher has no datasets: call register_dataset first"
    others = f" and {count - len(names)} others" if count > len(names) else ""
    return f"the registered {'dataset is' if count == 1 else 'datasets are'} {', '.join(map(repr, names))}{others}"
