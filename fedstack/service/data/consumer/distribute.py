"""Defines the public functions that distribute and register datasets, and checks their arguments."""

from collections.abc import Callable
from typing import TypeAlias, cast

from fedstack.computations.leaves.carrier_policy import CarrierPolicy, checked_carrier_policy
from fedstack.computations.types.language import Type
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import name_text
from fedstack.foundations.number_checks import check_number, checked_positive
from fedstack.foundations.value_text import describe
from fedstack.membership.reaching import answered
from fedstack.proto.data_service_pb2 import DescribeDatasetRequest
from fedstack.service.data.consumer.connections import Connections
from fedstack.service.data.consumer.descriptions import (
    KnownDataset,
    ShardingPolicy,
    Terms,
    checked_policy,
    described,
    known_dataset,
    read_cursor,
    registered,
)
from fedstack.service.data.consumer.distributed_dataset import DistributedDataset, DistributedSource
from fedstack.service.data.consumer.pass_plan import Guarantee
from fedstack.service.data.datasets.client_datasets import ClientDatasets
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.elements import type_of
from fedstack.service.host.server_thread import OwnedServer
from fedstack.transport.grpc.channels import Channel, is_channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.wire.addresses import Target, TargetResolver, resolve_target

_TARGETS = ("AUTO", "ANY", "LOCAL")
_REFUSED = {
    "consumer_index": "pass the same job_name in several consumers to deliver each element to one of them",
    "num_consumers": "pass the same job_name in several consumers to deliver each element to one of them",
    "cross_trainer_cache": "pass the same job_name in several consumers to share the elements among them",
    "data_transfer_protocol": 'omit it; workers with protocol "grpc+local" share memory with their own process',
}


Service: TypeAlias = "str | Target | tuple[str, str] | OwnedServer | TargetResolver | Channel"


def distribute(
    processing_mode: ShardingPolicy | str,
    service: Service,
    job_name: str | None = None,
    *,
    max_outstanding_requests: int | None = None,
    compression: str | None = "AUTO",
    target_workers: str = "AUTO",
    guarantee: str = "at_most_once",
    resume: bytes | None = None,
    credentials: ClientCredentials | None = None,
    element_spec: object = None,
    dispatcher_timeout_ms: float = 60_000,
    transport: Transport = "auto",
    **refused: object,
) -> Callable[[Dataset], DistributedDataset]:
    """Returns a transformation for `Dataset.apply` that lets data workers read the dataset.

        dataset = Dataset.range(1000).map(square).apply(distribute("distributed_epoch", dispatcher.target))

    The dataset is registered when iteration begins. Each iteration, and each repetition of a `repeat`, is a pass over
    the dataset. Steps that require all elements, such as `batch` and `shuffle`, run in the process that iterates over
    the dataset.

    Args:
      processing_mode: The division of the dataset among workers. With `ShardingPolicy.DYNAMIC` or
        `"distributed_epoch"`, each element is read once. With `ShardingPolicy.OFF` or `"parallel_epochs"`, each worker
        reads all elements. With `ShardingPolicy.FILE` or `ShardingPolicy.DATA`, the position of a file or an element
        determines the worker that reads it.
      service: The dispatcher: an address, a tuple of a protocol and an address, a `DispatchServer`, a cluster job with
        a single task, or a channel.
      job_name: The name of a job. Consumers with the same job name share the passes over a dataset, and each element is
        delivered to one of them.
      max_outstanding_requests: The maximum number of blocks of elements that are requested or wait to be consumed; by
        default two for each worker.
      compression: `None` or `"AUTO"`. Neither has an effect, because elements are sent uncompressed.
      target_workers: `"LOCAL"` to read only from workers in this process; `"ANY"` or `"AUTO"` to read from all workers.
      guarantee: The guarantee for the delivery of each element if a worker or a consumer is lost: `"at_most_once"`,
        `"at_least_once"` or `"exactly_once"`.
      resume: A cursor that an iterator's `cursor()` returned, from which the first iteration continues.
      credentials: The certificates and the token for calls to the dispatcher and its workers.
      element_spec: The expected type of the elements, which is compared with the actual type.
      dispatcher_timeout_ms: The maximum time for which the dispatcher may be unavailable, in milliseconds.
      transport: How to reach the dispatcher and its workers: `"stream"`, `"grpc"`, or `"auto"` for streams where they
        can be reached.
      **refused: Other arguments of TensorFlow's data service, which are not supported. The error message suggests an
        alternative.

    Raises:
      InvalidValueError: If an argument is invalid.
      TypeMismatchError: If an argument has the wrong type.
    """
    _check_refused(refused)
    terms = _terms(
        processing_mode, job_name, max_outstanding_requests, target_workers, guarantee, resume, dispatcher_timeout_ms
    )
    connections = _connections(service, credentials, terms, compression, transport)

    def apply(dataset: Dataset) -> DistributedDataset:
        if not isinstance(cast(object, dataset), Dataset):
            raise TypeMismatchError(
                f"Expected distribute to be applied to a dataset, found {describe(dataset)}; create a Dataset first"
            )
        _check_spec(element_spec, dataset.element_type)
        return _distributed(described(dataset), terms, connections)

    return apply


def register_dataset(
    service: Service,
    dataset: "Dataset | ClientDatasets[Dataset]",
    compression: str | None = "AUTO",
    dataset_id: str | None = None,
    *,
    credentials: ClientCredentials | None = None,
    dispatcher_timeout_ms: float = 60_000,
    transport: Transport = "auto",
) -> str:
    """Registers a dataset with a dispatcher, for `from_dataset_id` or, by client, for `DatasetDataSource`.

    Args:
      service: The dispatcher; see `distribute`.
      dataset: The dataset, or the result of its `by_client(column)` to register it by client.
      compression: `None` or `"AUTO"`. Neither has an effect.
      dataset_id: The id under which to register the dataset; by default a prefix of the digest of its definition, so
        that registering the same dataset again returns the same id.
      credentials: The credentials for calls to the dispatcher.
      dispatcher_timeout_ms: The maximum time to wait for the dispatcher, in milliseconds.
      transport: How to reach the dispatcher; see `distribute`.

    Returns:
      The id under which the dataset is registered.

    Raises:
      InvalidValueError: If another dataset is registered under the id.
      CarrierError: If a function or a source of the dataset cannot be serialized.
      WorkerUnavailableError: If the dispatcher cannot be reached in time.
    """
    whole, column = (dataset.dataset, dataset.column) if isinstance(dataset, ClientDatasets) else (dataset, "")
    if not isinstance(cast(object, whole), Dataset):
        raise TypeMismatchError(
            f"Expected register_dataset to receive a dataset, found {describe(dataset)}; pass a Dataset or the result "
            "of its by_client(column)"
        )
    name = "" if dataset_id is None else _checked_name("dataset_id", dataset_id)
    connections = _connections(service, credentials, Terms(ShardingPolicy.OFF), compression, transport)
    known, stub = described(whole, name, column), connections.dispatcher
    seconds = _seconds(dispatcher_timeout_ms)
    return stub.io.run_sync(answered(stub, lambda: registered(known, stub, by_name=True), seconds)).dataset_id


def from_dataset_id(
    processing_mode: ShardingPolicy | str,
    service: Service,
    dataset_id: str,
    element_spec: object = None,
    job_name: str | None = None,
    *,
    max_outstanding_requests: int | None = None,
    compression: str | None = "AUTO",
    target_workers: str = "AUTO",
    guarantee: str = "at_most_once",
    resume: bytes | None = None,
    credentials: ClientCredentials | None = None,
    dispatcher_timeout_ms: float = 60_000,
    policy: CarrierPolicy | None = None,
    transport: Transport = "auto",
    **refused: object,
) -> DistributedDataset:
    """Returns a dataset that is registered with a dispatcher and read by data workers.

    Args:
      processing_mode: The division of the dataset among workers; see `distribute`.
      service: The dispatcher; see `distribute`.
      dataset_id: The id that `register_dataset` returned.
      element_spec: The expected type of the elements, which is compared with the actual type.
      job_name: The name of the job whose consumers share the passes; see `distribute`.
      max_outstanding_requests: The maximum number of blocks of elements that are requested or wait to be consumed.
      compression: `None` or `"AUTO"`. Neither has an effect.
      target_workers: The workers to read from; see `distribute`.
      guarantee: The guarantee for the delivery of each element if a worker or a consumer is lost; see `distribute`.
      resume: The cursor from which the first iteration continues; see `distribute`.
      credentials: The credentials for calls to the dispatcher and its workers.
      dispatcher_timeout_ms: The maximum time to wait for the dispatcher, in milliseconds.
      policy: The policy that determines which of the dataset's functions may run in this process; by default, none of
        them may. Functions that follow a step such as `batch` or `shuffle` must run in this process.
      transport: How to reach the dispatcher and its workers; see `distribute`.
      **refused: Other arguments of TensorFlow's data service, which are not supported. The error message suggests an
        alternative.

    Raises:
      CarrierError: If a function must run in this process, but `policy` does not permit it.
      InvalidValueError: If no dataset is registered under the id, or another argument is invalid.
      TypeMismatchError: If `element_spec` is not the type of the elements, or an argument has the wrong type.
      WorkerUnavailableError: If the dispatcher cannot be reached in time.
    """
    _check_refused(refused)
    allowed = None if policy is None else checked_carrier_policy(policy)
    terms = _terms(
        processing_mode, job_name, max_outstanding_requests, target_workers, guarantee, resume, dispatcher_timeout_ms
    )
    connections = _connections(service, credentials, terms, compression, transport)
    stub, request = connections.dispatcher, DescribeDatasetRequest(dataset_id=_checked_name("dataset_id", dataset_id))
    description = stub.io.run_sync(answered(stub, lambda: stub.describe(request), terms.timeout))
    known = known_dataset(description, allowed)
    _check_spec(element_spec, known.element)
    return _distributed(known, terms, connections)


def _distributed(known: KnownDataset, terms: Terms, connections: Connections) -> DistributedDataset:
    if terms.resume is not None and terms.resume.digest != known.description.digest:
        raise InvalidValueError(
            f"Expected resume to be a cursor of this dataset ({known.description.digest.hex()[:16]}…), found a cursor "
            f"of another dataset ({terms.resume.digest.hex()[:16]}…); use the dataset that the cursor was created from"
        )
    if terms.policy is ShardingPolicy.FILE and not known.description.file_splits:
        raise InvalidValueError(
            "Expected a dataset of files without steps that depend on the order of elements, as ShardingPolicy.FILE "
            f"requires, found {name_text(known.description.dataset_id)}, which is a different kind of dataset; use "
            "ShardingPolicy.DATA"
        )
    source = DistributedSource(known, terms, connections)
    dataset = DistributedDataset(source)
    if source.element.is_equivalent_to(known.split_element) and not source.is_whole:
        element, after = known.split_element, tuple(step.apart() for step in known.after)
        for step in after:
            element = step.element(element)
        dataset = DistributedDataset(source, after, element)
    return dataset


def _terms(
    mode: object,
    job_name: object,
    max_requests: object,
    target_workers: object,
    guarantee: object,
    resume: object,
    timeout_ms: object,
) -> Terms:
    policy = checked_policy(mode)
    targets = target_workers.upper() if isinstance(target_workers, str) else target_workers
    if targets not in _TARGETS:
        raise InvalidValueError(
            f"Expected target_workers to be one of {', '.join(map(repr, _TARGETS))}, found {target_workers!r}"
        )
    known = {one.value: one for one in Guarantee}
    if not isinstance(guarantee, str) or guarantee not in known:
        raise InvalidValueError(f"Expected guarantee to be one of {', '.join(map(repr, known))}, found {guarantee!r}")
    job = "" if job_name is None else _checked_name("job_name", job_name)
    cursor = None if resume is None else read_cursor(resume)
    if cursor is not None and known[guarantee] is not Guarantee.EXACTLY_ONCE:
        raise InvalidValueError(
            f"Expected guarantee to be 'exactly_once' for a pass that is resumed, found {guarantee!r}; pass "
            "guarantee='exactly_once'"
        )
    if cursor is not None and cursor.policy != policy.name:
        raise InvalidValueError(
            f"Expected processing_mode to be ShardingPolicy.{cursor.policy}, as in the pass to resume, found {policy}; "
            "use the processing_mode of that pass, or start a new pass without resume"
        )
    if cursor is not None and cursor.job_name != job:
        raise InvalidValueError(
            f"Expected job_name to be {cursor.job_name!r}, as in the pass to resume, found {job!r}; use the job_name "
            "of that pass"
        )
    most = None if max_requests is None else checked_positive("max_outstanding_requests", max_requests)
    return Terms(policy, known[guarantee], job, cast(str, targets), most, _seconds(timeout_ms), cursor)


def _connections(
    service: object, credentials: ClientCredentials | None, terms: Terms, compression: object, transport: Transport
) -> Connections:
    if compression not in (None, "AUTO"):
        raise InvalidValueError(
            f"Expected compression to be 'AUTO' or None, found {compression!r}; if it is the id of a dataset, pass it "
            "as dataset_id="
        )
    return Connections(_address(service), credentials, terms.target_workers == "LOCAL", transport)


def _address(service: object) -> str | Target | Channel:
    if isinstance(service, TargetResolver):
        return resolve_target(service)
    if is_channel(service):
        return service
    if isinstance(service, OwnedServer):
        service = service.target
    if isinstance(service, tuple):
        parts = cast("tuple[object, ...]", service)
        if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise InvalidValueError(f"Expected service to be a tuple of a protocol and an address, found {parts!r}")
        service = f"{parts[0]}://{parts[1]}"
    if isinstance(service, Target):
        return service
    if not isinstance(service, str) or not service.strip():
        raise InvalidValueError(
            f"Expected service to be the address of a dispatcher, found {describe(service)}; pass 'grpc://host:port', "
            "a DispatchServer, a cluster job with a single task, or a channel"
        )
    return service


def _checked_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidValueError(
            f"Expected {what} to be a non-empty string, found {describe(name)}; pass a non-empty string, or omit the "
            "argument"
        )
    return name


def _seconds(milliseconds: object) -> float:
    check_number("dispatcher_timeout_ms", milliseconds)
    return cast(float, milliseconds) / 1000


def _check_spec(spec: object, element: Type) -> None:
    if spec is None:
        return
    expected = type_of(spec, "element_spec")
    if not expected.is_equivalent_to(element):
        raise TypeMismatchError(
            f"Expected elements of type {expected}, as declared by element_spec, found elements of type {element}"
        )


def _check_refused(refused: dict[str, object]) -> None:
    for name, value in refused.items():
        if name not in _REFUSED:
            raise TypeError(f"Unknown argument {name!r}; see help(fedstack.service.data.distribute)")
        if value is not None:
            raise InvalidValueError(f"The argument {name}={value!r} is not supported; {_REFUSED[name]}")
