"""Registers datasets and finds them by digest or name."""

import hashlib

from fedstack.errors import InvalidValueError
from fedstack.proto.data_service_pb2 import DatasetDescription, DescribeDatasetRequest
from fedstack.service.data.dispatcher.journal import Tables
from fedstack.service.data.dispatcher.ranges import MOST_NUMBER
from fedstack.service.host.limits import DispatcherLimits, exceeded

MAX_NAME_BYTES = 1000
# Each file is a row of a table if workers read files of their own.
MOST_FILES = 100_000
_DIGEST_BYTES = 32
_NAMED = 5


def check_dataset(dataset: DatasetDescription, limits: DispatcherLimits) -> None:
    """Checks as much of a description as is possible before the definition arrives.

    Raises:
      InvalidValueError: If the description is invalid.
      ResourceLimitError: If the definition is too large.
    """
    if len(dataset.digest) != _DIGEST_BYTES:
        raise InvalidValueError(f"Expected a digest of {_DIGEST_BYTES} bytes, found {len(dataset.digest)}")
    if len(dataset.dataset_id.encode()) > MAX_NAME_BYTES:
        raise InvalidValueError(f"Expected a dataset_id of at most {MAX_NAME_BYTES} bytes, found more")
    if dataset.num_splits > MOST_NUMBER:
        raise InvalidValueError(f"Expected at most {MOST_NUMBER} splits, found {dataset.num_splits}")
    files = dataset.file_splits
    if files and (len(files) > MOST_FILES or sum(files) != dataset.num_splits):
        raise InvalidValueError(
            f"Expected the splits of at most {MOST_FILES} files, {dataset.num_splits} together, found {sum(files)} of "
            f"{len(files)}"
        )
    size = max(dataset.definition_bytes, dataset.ByteSize())
    if size > limits.max_definition_bytes:
        raise exceeded(limits, "max_definition_bytes", size, "put arrays into files")


def check_definition(dataset: DatasetDescription, definition: memoryview) -> None:
    """Checks that a definition has the digest in the description.

    Raises:
      InvalidValueError: If its digest differs.
    """
    found = hashlib.sha256(definition).digest()
    if found != dataset.digest:
        raise InvalidValueError(
            f"Expected the definition of dataset {dataset.digest.hex()}, found that of {found.hex()}; it was changed "
            "in transit, or its digest is wrong"
        )


def register(
    tables: Tables, dataset: DatasetDescription, limits: DispatcherLimits, keeps: bool = True
) -> DatasetDescription:
    """Registers a dataset under its name, or under a prefix of its digest; a dataset may have several names.

    Args:
      tables: The tables of the journal.
      dataset: The description of the dataset.
      limits: The limit on the number of names.
      keeps: Whether to register the dataset, or only to check that this is possible.

    Returns:
      The description as registered, with the name.

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
            f"Expected dataset {row[0].hex()[:32]}, which is registered as {name!r}, found "
            f"{dataset.digest.hex()[:32]} with other content; choose another dataset_id"
        )
    known = _described(tables, dataset.digest)
    if known is not None and _lasting(known) != _lasting(kept):
        raise InvalidValueError(
            f"Expected the registered description of dataset {dataset.digest.hex()[:32]}, found a different one; "
            "register it with the same release of fedstack as before"
        )
    if keeps:
        tables.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (name, dataset.digest))
        content = kept.SerializeToString()
        tables.execute("INSERT OR REPLACE INTO datasets VALUES (?, ?)", (dataset.digest, content))
    return kept


def _lasting(dataset: DatasetDescription) -> DatasetDescription:
    """Returns the part of a description that never changes: the number of elements does, if files have grown."""
    kept = DatasetDescription()
    kept.CopyFrom(dataset)
    for field in ("dataset_id", "cardinality", "commit", "protocol", "version"):
        kept.ClearField(field)
    return kept


def find_dataset(tables: Tables, request: DescribeDatasetRequest) -> DatasetDescription:
    """Returns the dataset with a name or a digest; an empty description if it is missing and the request permits that.

    Raises:
      InvalidValueError: If it is missing and the request requires it; the message lists some registered datasets.
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
        raise InvalidValueError(f"Expected a registered dataset, found none with {wanted}; {_some(tables)}")
    found.dataset_id = request.dataset_id or found.dataset_id
    return found


def _described(tables: Tables, digest: bytes) -> DatasetDescription | None:
    row = tables.execute("SELECT description FROM datasets WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else DatasetDescription.FromString(row[0])


def _some(tables: Tables) -> str:
    names = [name for (name,) in tables.execute("SELECT dataset_id FROM names ORDER BY dataset_id LIMIT ?", (_NAMED,))]
    (count,) = tables.execute("SELECT count(*) FROM names").fetchone()
    if not count:
        return "nothing is registered: call register_dataset first"
    others = f" and {count - len(names)} others" if count > len(names) else ""
    return f"there {'is' if count == 1 else 'are'} {', '.join(map(repr, names))}{others}"
