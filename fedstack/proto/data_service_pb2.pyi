from federated_language.proto import computation_pb2 as _computation_pb2
from fedstack.proto import datasets_pb2 as _datasets_pb2
from fedstack.proto import extensions_pb2 as _extensions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Commit(_message.Message):
    __slots__ = ("number", "branch", "seal")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    number: int
    branch: bytes
    seal: bytes
    def __init__(self, number: _Optional[int] = ..., branch: _Optional[bytes] = ..., seal: _Optional[bytes] = ...) -> None: ...

class DatasetDescription(_message.Message):
    __slots__ = ("dataset_id", "digest", "element", "num_splits", "split_element", "after", "cardinality", "is_endless", "client_column", "file_splits", "definition_bytes", "commit", "protocol", "version")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    NUM_SPLITS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_ELEMENT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    IS_ENDLESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_COLUMN_FIELD_NUMBER: _ClassVar[int]
    FILE_SPLITS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    digest: bytes
    element: _computation_pb2.Type
    num_splits: int
    split_element: _computation_pb2.Type
    after: _containers.RepeatedCompositeFieldContainer[_datasets_pb2.DatasetStep]
    cardinality: int
    is_endless: bool
    client_column: str
    file_splits: _containers.RepeatedScalarFieldContainer[int]
    definition_bytes: int
    commit: Commit
    protocol: int
    version: str
    def __init__(self, dataset_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., element: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., num_splits: _Optional[int] = ..., split_element: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., after: _Optional[_Iterable[_Union[_datasets_pb2.DatasetStep, _Mapping]]] = ..., cardinality: _Optional[int] = ..., is_endless: bool = ..., client_column: _Optional[str] = ..., file_splits: _Optional[_Iterable[int]] = ..., definition_bytes: _Optional[int] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class RegisterDatasetRequest(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: DatasetDescription
    def __init__(self, dataset: _Optional[_Union[DatasetDescription, _Mapping]] = ...) -> None: ...

class DescribeDatasetRequest(_message.Message):
    __slots__ = ("dataset_id", "digest", "may_lack", "commit", "protocol", "version")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAY_LACK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    digest: bytes
    may_lack: bool
    commit: Commit
    protocol: int
    version: str
    def __init__(self, dataset_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., may_lack: bool = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class OpenPassRequest(_message.Message):
    __slots__ = ("digest", "job_name", "repetition", "policy", "guarantee", "target_workers", "consumer", "resumes", "commit", "opening")
    class Policy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[OpenPassRequest.Policy]
        OFF: _ClassVar[OpenPassRequest.Policy]
        DYNAMIC: _ClassVar[OpenPassRequest.Policy]
        FILE: _ClassVar[OpenPassRequest.Policy]
        DATA: _ClassVar[OpenPassRequest.Policy]
    UNSPECIFIED: OpenPassRequest.Policy
    OFF: OpenPassRequest.Policy
    DYNAMIC: OpenPassRequest.Policy
    FILE: OpenPassRequest.Policy
    DATA: OpenPassRequest.Policy
    class Guarantee(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DEFAULT: _ClassVar[OpenPassRequest.Guarantee]
        AT_MOST_ONCE: _ClassVar[OpenPassRequest.Guarantee]
        AT_LEAST_ONCE: _ClassVar[OpenPassRequest.Guarantee]
        EXACTLY_ONCE: _ClassVar[OpenPassRequest.Guarantee]
    DEFAULT: OpenPassRequest.Guarantee
    AT_MOST_ONCE: OpenPassRequest.Guarantee
    AT_LEAST_ONCE: OpenPassRequest.Guarantee
    EXACTLY_ONCE: OpenPassRequest.Guarantee
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    TARGET_WORKERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    job_name: str
    repetition: int
    policy: OpenPassRequest.Policy
    guarantee: OpenPassRequest.Guarantee
    target_workers: str
    consumer: bytes
    resumes: bool
    commit: Commit
    opening: bytes
    def __init__(self, digest: _Optional[bytes] = ..., job_name: _Optional[str] = ..., repetition: _Optional[int] = ..., policy: _Optional[_Union[OpenPassRequest.Policy, str]] = ..., guarantee: _Optional[_Union[OpenPassRequest.Guarantee, str]] = ..., target_workers: _Optional[str] = ..., consumer: _Optional[bytes] = ..., resumes: bool = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., opening: _Optional[bytes] = ...) -> None: ...

class OpenPassResponse(_message.Message):
    __slots__ = ("commit", "pass_id", "lease_seconds", "taken", "next_number", "is_over")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    pass_id: bytes
    lease_seconds: float
    taken: _containers.RepeatedCompositeFieldContainer[SplitRange]
    next_number: int
    is_over: bool
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., pass_id: _Optional[bytes] = ..., lease_seconds: _Optional[float] = ..., taken: _Optional[_Iterable[_Union[SplitRange, _Mapping]]] = ..., next_number: _Optional[int] = ..., is_over: bool = ...) -> None: ...

class SplitRange(_message.Message):
    __slots__ = ("id", "first", "last", "whole", "worker", "is_finished", "shard")
    ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    id: int
    first: int
    last: int
    whole: bool
    worker: bytes
    is_finished: bool
    shard: bool
    def __init__(self, id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., whole: bool = ..., worker: _Optional[bytes] = ..., is_finished: bool = ..., shard: bool = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("commit", "pass_id", "consumer", "number", "want", "wait_seconds", "finished", "given_back", "workers_version", "waits")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    WORKERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    pass_id: bytes
    consumer: bytes
    number: int
    want: int
    wait_seconds: float
    finished: _containers.RepeatedScalarFieldContainer[int]
    given_back: _containers.RepeatedScalarFieldContainer[int]
    workers_version: int
    waits: bool
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., pass_id: _Optional[bytes] = ..., consumer: _Optional[bytes] = ..., number: _Optional[int] = ..., want: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., finished: _Optional[_Iterable[int]] = ..., given_back: _Optional[_Iterable[int]] = ..., workers_version: _Optional[int] = ..., waits: bool = ...) -> None: ...

class TakeResponse(_message.Message):
    __slots__ = ("range", "is_exhausted", "worker", "workers_version", "commit")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    IS_EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    range: _containers.RepeatedCompositeFieldContainer[SplitRange]
    is_exhausted: bool
    worker: _containers.RepeatedCompositeFieldContainer[DataWorkerAddress]
    workers_version: int
    commit: Commit
    def __init__(self, range: _Optional[_Iterable[_Union[SplitRange, _Mapping]]] = ..., is_exhausted: bool = ..., worker: _Optional[_Iterable[_Union[DataWorkerAddress, _Mapping]]] = ..., workers_version: _Optional[int] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class DataWorkerAddress(_message.Message):
    __slots__ = ("worker", "address")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker: bytes
    address: str
    def __init__(self, worker: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class ReleasePassRequest(_message.Message):
    __slots__ = ("commit", "pass_id", "consumer", "finished", "given_back", "may_resume")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    MAY_RESUME_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    pass_id: bytes
    consumer: bytes
    finished: _containers.RepeatedScalarFieldContainer[int]
    given_back: _containers.RepeatedScalarFieldContainer[int]
    may_resume: bool
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., pass_id: _Optional[bytes] = ..., consumer: _Optional[bytes] = ..., finished: _Optional[_Iterable[int]] = ..., given_back: _Optional[_Iterable[int]] = ..., may_resume: bool = ...) -> None: ...

class ReleasePassResponse(_message.Message):
    __slots__ = ("commit",)
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("worker", "leaves", "token", "commit", "protocol", "version")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    worker: DataWorkerAddress
    leaves: bool
    token: str
    commit: Commit
    protocol: int
    version: str
    def __init__(self, worker: _Optional[_Union[DataWorkerAddress, _Mapping]] = ..., leaves: bool = ..., token: _Optional[str] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("commit", "interval_seconds", "lease_seconds", "protocol", "version")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    interval_seconds: float
    lease_seconds: float
    protocol: int
    version: str
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., interval_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _containers.RepeatedCompositeFieldContainer[DataWorkerAddress]
    def __init__(self, worker: _Optional[_Iterable[_Union[DataWorkerAddress, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("digest", "splits", "client", "num_splits", "first_element", "block_bytes", "commit", "pass_id", "protocol", "version")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NUM_SPLITS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ELEMENT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    splits: SplitRange
    client: _containers.RepeatedScalarFieldContainer[bytes]
    num_splits: int
    first_element: int
    block_bytes: int
    commit: Commit
    pass_id: bytes
    protocol: int
    version: str
    def __init__(self, digest: _Optional[bytes] = ..., splits: _Optional[_Union[SplitRange, _Mapping]] = ..., client: _Optional[_Iterable[bytes]] = ..., num_splits: _Optional[int] = ..., first_element: _Optional[int] = ..., block_bytes: _Optional[int] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., pass_id: _Optional[bytes] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("rows", "elements", "is_last", "client_rows", "block", "protocol", "version")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    rows: int
    elements: _extensions_pb2.Packed
    is_last: bool
    client_rows: _containers.RepeatedScalarFieldContainer[int]
    block: int
    protocol: int
    version: str
    def __init__(self, rows: _Optional[int] = ..., elements: _Optional[_Union[_extensions_pb2.Packed, _Mapping]] = ..., is_last: bool = ..., client_rows: _Optional[_Iterable[int]] = ..., block: _Optional[int] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("digest", "protocol", "version")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    protocol: int
    version: str
    def __init__(self, digest: _Optional[bytes] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("client", "rows", "protocol", "version")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    client: _containers.RepeatedScalarFieldContainer[bytes]
    rows: _containers.RepeatedScalarFieldContainer[int]
    protocol: int
    version: str
    def __init__(self, client: _Optional[_Iterable[bytes]] = ..., rows: _Optional[_Iterable[int]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ReadStatesRequest(_message.Message):
    __slots__ = ("states", "protocol", "version")
    STATES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    states: _extensions_pb2.Packed.Stored
    protocol: int
    version: str
    def __init__(self, states: _Optional[_Union[_extensions_pb2.Packed.Stored, _Mapping]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ReadStatesResponse(_message.Message):
    __slots__ = ("protocol", "version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class WriteStatesRequest(_message.Message):
    __slots__ = ("store", "type", "name", "clients", "rows", "protocol", "version")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    store: str
    type: _computation_pb2.Type
    name: str
    clients: bytes
    rows: int
    protocol: int
    version: str
    def __init__(self, store: _Optional[str] = ..., type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., name: _Optional[str] = ..., clients: _Optional[bytes] = ..., rows: _Optional[int] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class WriteStatesResponse(_message.Message):
    __slots__ = ("file", "rows", "protocol", "version")
    FILE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    file: _containers.RepeatedCompositeFieldContainer[_extensions_pb2.Packed.Stored.File]
    rows: _containers.RepeatedScalarFieldContainer[int]
    protocol: int
    version: str
    def __init__(self, file: _Optional[_Iterable[_Union[_extensions_pb2.Packed.Stored.File, _Mapping]]] = ..., rows: _Optional[_Iterable[int]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class PassCursor(_message.Message):
    __slots__ = ("commit", "digest", "job_name", "repetition", "consumer", "finished", "begun", "left_out", "policy")
    class Begun(_message.Message):
        __slots__ = ("range", "rows")
        RANGE_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        range: int
        rows: int
        def __init__(self, range: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    digest: bytes
    job_name: str
    repetition: int
    consumer: bytes
    finished: _containers.RepeatedScalarFieldContainer[int]
    begun: _containers.RepeatedCompositeFieldContainer[PassCursor.Begun]
    left_out: int
    policy: str
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., digest: _Optional[bytes] = ..., job_name: _Optional[str] = ..., repetition: _Optional[int] = ..., consumer: _Optional[bytes] = ..., finished: _Optional[_Iterable[int]] = ..., begun: _Optional[_Iterable[_Union[PassCursor.Begun, _Mapping]]] = ..., left_out: _Optional[int] = ..., policy: _Optional[str] = ...) -> None: ...
