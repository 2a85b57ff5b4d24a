"""Knows the datasets that are registered: what stands for each, and under which names."""

import hashlib

from fedstack.errors import InvalidValueError
from fedstack.proto.data_service_pb2 import DatasetDescription, DescribeDatasetRequest
from fedstack.service.data.dispatcher.journal import Tables
from fedstack.service.data.dispatcher.ranges import MOST_NUMBER
from fedstack.service.host.limits import DispatcherLimits, exceeded

MAX_NAME_BYTES = 1000
# Each is a row of a table where workers read files of their own.
MOST_FILES = 100_000
_DIGEST_BYTES = 32
_NAMED = 5


def check_dataset(dataset: DatasetDescription, limits: DispatcherLimits) -> None:
    """Checks what can be checked of a description before the definition has come.

    Raises:
      InvalidValueError: If it is none.
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
    """Checks that a definition is the one that a digest stands for.

    Raises:
      InvalidValueError: If it is another.
    """
    found = hashlib.sha256(definition).digest()
    if found != dataset.digest:
        raise InvalidValueError(
            f"Expected the definition of dataset {dataset.digest.hex()}, found that of {found.hex()}; it has changed "
            "on its way, or its digest is wrong"
        )


def register(
    tables: Tables, dataset: DatasetDescription, limits: DispatcherLimits, keeps: bool = True
) -> DatasetDescription:
    """Registers a dataset under its name, or the beginning of its digest; the same one may have several names.

    Args:
      tables: What is known.
      dataset: What is known of it.
      limits: How many there may be.
      keeps: Whether to write it down, and not only to check whether it may be.

    Returns:
      What is registered, with the name.

    Raises:
      InvalidValueError: If the name is that of another dataset, or the dataset is known as something else.
      ResourceLimitError: If there are too many.
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
            f"Expected the dataset {row[0].hex()[:32]} under the id {name!r}, which it has, found "
            f"{dataset.digest.hex()[:32]} with other content; choose another dataset_id"
        )
    known = _described(tables, dataset.digest)
    if known is not None and _lasting(known) != _lasting(kept):
        raise InvalidValueError(
            f"Expected of dataset {dataset.digest.hex()[:32]} what is known of it, found something else; register it "
            "with the same release of fedstack as before"
        )
    if keeps:
        tables.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (name, dataset.digest))
        content = kept.SerializeToString()
        tables.execute("INSERT OR REPLACE INTO datasets VALUES (?, ?)", (dataset.digest, content))
    return kept


def _lasting(dataset: DatasetDescription) -> DatasetDescription:
    """Returns what of a description is the same each time: files may have grown, so that there are more elements."""
    kept = DatasetDescription()
    kept.CopyFrom(dataset)
    for field in ("dataset_id", "cardinality", "commit", "protocol", "version"):
        kept.ClearField(field)
    return kept


def find_dataset(tables: Tables, request: DescribeDatasetRequest) -> DatasetDescription:
    """Returns the dataset that has a name or a digest; an empty description if there is none and that may be.

    Raises:
      InvalidValueError: If there has to be one; the message has some that there are.
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
        raise InvalidValueError(f"Expected a dataset that is registered, found none of {wanted}; {_some(tables)}")
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
