from federated_language.proto import array_pb2 as _array_pb2
from federated_language.proto import computation_pb2 as _computation_pb2
from federated_language.proto import data_type_pb2 as _data_type_pb2
from fedstack.proto import executor_pb2 as _executor_pb2
from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("header", "data", "heartbeat")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    data: bytes
    heartbeat: Heartbeat
    def __init__(self, header: _Optional[bytes] = ..., data: _Optional[bytes] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Whole(_message.Message):
    __slots__ = ("header", "data", "goes_on")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    data: bytes
    goes_on: str
    def __init__(self, header: _Optional[bytes] = ..., data: _Optional[bytes] = ..., goes_on: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("call",)
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: str
    def __init__(self, call: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("done", "running", "failed", "work")
    DONE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    done: int
    running: int
    failed: int
    work: _containers.RepeatedCompositeFieldContainer[Work]
    def __init__(self, done: _Optional[int] = ..., running: _Optional[int] = ..., failed: _Optional[int] = ..., work: _Optional[_Iterable[_Union[Work, _Mapping]]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("first_client", "clients", "function", "seconds", "session", "client")
    FIRST_CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    first_client: int
    clients: int
    function: str
    seconds: float
    session: str
    client: int
    def __init__(self, first_client: _Optional[int] = ..., clients: _Optional[int] = ..., function: _Optional[str] = ..., seconds: _Optional[float] = ..., session: _Optional[str] = ..., client: _Optional[int] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("protocol", "version", "nonce", "process_digest")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    nonce: bytes
    process_digest: bytes
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., nonce: _Optional[bytes] = ..., process_digest: _Optional[bytes] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("protocol", "version", "same_process", "phases", "leaf_runtimes", "allowed_modules", "missing_modules", "python_version", "max_value_bytes", "heartbeat_seconds", "asks_for_token", "isolates", "threads", "stores")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAME_PROCESS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    LEAF_RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MODULES_FIELD_NUMBER: _ClassVar[int]
    MISSING_MODULES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ASKS_FOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ISOLATES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    same_process: bool
    phases: bool
    leaf_runtimes: _containers.RepeatedScalarFieldContainer[str]
    allowed_modules: _containers.RepeatedScalarFieldContainer[str]
    missing_modules: _containers.RepeatedScalarFieldContainer[str]
    python_version: str
    max_value_bytes: int
    heartbeat_seconds: float
    asks_for_token: bool
    isolates: bool
    threads: int
    stores: bool
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., same_process: bool = ..., phases: bool = ..., leaf_runtimes: _Optional[_Iterable[str]] = ..., allowed_modules: _Optional[_Iterable[str]] = ..., missing_modules: _Optional[_Iterable[str]] = ..., python_version: _Optional[str] = ..., max_value_bytes: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., asks_for_token: bool = ..., isolates: bool = ..., threads: _Optional[int] = ..., stores: bool = ...) -> None: ...

class FindStoresRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[_Iterable[str]] = ...) -> None: ...

class FindStoresResponse(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("cardinalities", "lease_seconds", "worker_index")
    CARDINALITIES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    cardinalities: _containers.RepeatedCompositeFieldContainer[_executor_pb2.Cardinality]
    lease_seconds: float
    worker_index: int
    def __init__(self, cardinalities: _Optional[_Iterable[_Union[_executor_pb2.Cardinality, _Mapping]]] = ..., lease_seconds: _Optional[float] = ..., worker_index: _Optional[int] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("executor", "lease_seconds")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    lease_seconds: float
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("executor",)
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    executor: _containers.RepeatedCompositeFieldContainer[_executor_pb2.ExecutorId]
    def __init__(self, executor: _Optional[_Iterable[_Union[_executor_pb2.ExecutorId, _Mapping]]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("unknown",)
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedCompositeFieldContainer[_executor_pb2.ExecutorId]
    def __init__(self, unknown: _Optional[_Iterable[_Union[_executor_pb2.ExecutorId, _Mapping]]] = ...) -> None: ...

class Creation(_message.Message):
    __slots__ = ("id", "value", "computation", "call", "struct", "selection")
    class Call(_message.Message):
        __slots__ = ("function_ref", "argument_ref")
        FUNCTION_REF_FIELD_NUMBER: _ClassVar[int]
        ARGUMENT_REF_FIELD_NUMBER: _ClassVar[int]
        function_ref: _executor_pb2.ValueRef
        argument_ref: _executor_pb2.ValueRef
        def __init__(self, function_ref: _Optional[_Union[_executor_pb2.ValueRef, _Mapping]] = ..., argument_ref: _Optional[_Union[_executor_pb2.ValueRef, _Mapping]] = ...) -> None: ...
    class Struct(_message.Message):
        __slots__ = ("element",)
        ELEMENT_FIELD_NUMBER: _ClassVar[int]
        element: _containers.RepeatedCompositeFieldContainer[_executor_pb2.CreateStructRequest.Element]
        def __init__(self, element: _Optional[_Iterable[_Union[_executor_pb2.CreateStructRequest.Element, _Mapping]]] = ...) -> None: ...
    class Selection(_message.Message):
        __slots__ = ("source_ref", "index")
        SOURCE_REF_FIELD_NUMBER: _ClassVar[int]
        INDEX_FIELD_NUMBER: _ClassVar[int]
        source_ref: _executor_pb2.ValueRef
        index: int
        def __init__(self, source_ref: _Optional[_Union[_executor_pb2.ValueRef, _Mapping]] = ..., index: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    id: str
    value: TypedValue
    computation: _computation_pb2.Computation
    call: Creation.Call
    struct: Creation.Struct
    selection: Creation.Selection
    def __init__(self, id: _Optional[str] = ..., value: _Optional[_Union[TypedValue, _Mapping]] = ..., computation: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., call: _Optional[_Union[Creation.Call, _Mapping]] = ..., struct: _Optional[_Union[Creation.Struct, _Mapping]] = ..., selection: _Optional[_Union[Creation.Selection, _Mapping]] = ...) -> None: ...

class TypedValue(_message.Message):
    __slots__ = ("type", "value")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    type: _computation_pb2.Type
    value: Packed
    def __init__(self, type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., value: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("executor", "creation", "value_ref")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    creation: _containers.RepeatedCompositeFieldContainer[Creation]
    value_ref: _executor_pb2.ValueRef
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., creation: _Optional[_Iterable[_Union[Creation, _Mapping]]] = ..., value_ref: _Optional[_Union[_executor_pb2.ValueRef, _Mapping]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("value", "differing_module")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_MODULE_FIELD_NUMBER: _ClassVar[int]
    value: Packed
    differing_module: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, value: _Optional[_Union[Packed, _Mapping]] = ..., differing_module: _Optional[_Iterable[str]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("executor", "creation", "value_ref", "cancel_ref", "waiting")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REF_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    creation: _containers.RepeatedCompositeFieldContainer[Creation]
    value_ref: _containers.RepeatedCompositeFieldContainer[_executor_pb2.ValueRef]
    cancel_ref: _containers.RepeatedCompositeFieldContainer[_executor_pb2.ValueRef]
    waiting: int
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., creation: _Optional[_Iterable[_Union[Creation, _Mapping]]] = ..., value_ref: _Optional[_Iterable[_Union[_executor_pb2.ValueRef, _Mapping]]] = ..., cancel_ref: _Optional[_Iterable[_Union[_executor_pb2.ValueRef, _Mapping]]] = ..., waiting: _Optional[int] = ...) -> None: ...

class StartResponse(_message.Message):
    __slots__ = ("outcome", "differing_module")
    class Outcome(_message.Message):
        __slots__ = ("id", "error")
        ID_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        id: str
        error: Status
        def __init__(self, id: _Optional[str] = ..., error: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_MODULE_FIELD_NUMBER: _ClassVar[int]
    outcome: _containers.RepeatedCompositeFieldContainer[StartResponse.Outcome]
    differing_module: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, outcome: _Optional[_Iterable[_Union[StartResponse.Outcome, _Mapping]]] = ..., differing_module: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("executor", "value_ref", "how", "value")
    class How(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ASSIGN: _ClassVar[UpdateRequest.How]
        ADD: _ClassVar[UpdateRequest.How]
        SUBTRACT: _ClassVar[UpdateRequest.How]
    ASSIGN: UpdateRequest.How
    ADD: UpdateRequest.How
    SUBTRACT: UpdateRequest.How
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    value_ref: _executor_pb2.ValueRef
    how: UpdateRequest.How
    value: TypedValue
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., value_ref: _Optional[_Union[_executor_pb2.ValueRef, _Mapping]] = ..., how: _Optional[_Union[UpdateRequest.How, str]] = ..., value: _Optional[_Union[TypedValue, _Mapping]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Packed(_message.Message):
    __slots__ = ("array", "raw", "struct", "column", "rows", "clients", "same", "fields", "computation", "sequences", "references", "stored")
    class Raw(_message.Message):
        __slots__ = ("dtype", "dim")
        DTYPE_FIELD_NUMBER: _ClassVar[int]
        DIM_FIELD_NUMBER: _ClassVar[int]
        dtype: _data_type_pb2.DataType
        dim: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, dtype: _Optional[_Union[_data_type_pb2.DataType, str]] = ..., dim: _Optional[_Iterable[int]] = ...) -> None: ...
    class Members(_message.Message):
        __slots__ = ("member",)
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        member: _containers.RepeatedCompositeFieldContainer[Packed]
        def __init__(self, member: _Optional[_Iterable[_Union[Packed, _Mapping]]] = ...) -> None: ...
    class Same(_message.Message):
        __slots__ = ("clients", "member")
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        clients: int
        member: Packed
        def __init__(self, clients: _Optional[int] = ..., member: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...
    class Fields(_message.Message):
        __slots__ = ("clients", "column")
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        COLUMN_FIELD_NUMBER: _ClassVar[int]
        clients: int
        column: _containers.RepeatedCompositeFieldContainer[Packed]
        def __init__(self, clients: _Optional[int] = ..., column: _Optional[_Iterable[_Union[Packed, _Mapping]]] = ...) -> None: ...
    class Sequences(_message.Message):
        __slots__ = ("rows", "row", "batching")
        ROWS_FIELD_NUMBER: _ClassVar[int]
        ROW_FIELD_NUMBER: _ClassVar[int]
        BATCHING_FIELD_NUMBER: _ClassVar[int]
        rows: _containers.RepeatedScalarFieldContainer[int]
        row: Packed
        batching: _containers.RepeatedCompositeFieldContainer[Packed.Batching]
        def __init__(self, rows: _Optional[_Iterable[int]] = ..., row: _Optional[_Union[Packed, _Mapping]] = ..., batching: _Optional[_Iterable[_Union[Packed.Batching, _Mapping]]] = ...) -> None: ...
    class Batching(_message.Message):
        __slots__ = ("size", "drop_remainder", "seed", "round", "reshuffles")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        ROUND_FIELD_NUMBER: _ClassVar[int]
        RESHUFFLES_FIELD_NUMBER: _ClassVar[int]
        size: int
        drop_remainder: bool
        seed: bytes
        round: int
        reshuffles: bool
        def __init__(self, size: _Optional[int] = ..., drop_remainder: bool = ..., seed: _Optional[bytes] = ..., round: _Optional[int] = ..., reshuffles: bool = ...) -> None: ...
    class References(_message.Message):
        __slots__ = ("source", "of", "key", "row", "batching", "first")
        SOURCE_FIELD_NUMBER: _ClassVar[int]
        OF_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        ROW_FIELD_NUMBER: _ClassVar[int]
        BATCHING_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        source: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
        of: _containers.RepeatedScalarFieldContainer[int]
        key: _containers.RepeatedScalarFieldContainer[bytes]
        row: _computation_pb2.Type
        batching: _containers.RepeatedCompositeFieldContainer[Packed.Batching]
        first: int
        def __init__(self, source: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ..., of: _Optional[_Iterable[int]] = ..., key: _Optional[_Iterable[bytes]] = ..., row: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., batching: _Optional[_Iterable[_Union[Packed.Batching, _Mapping]]] = ..., first: _Optional[int] = ...) -> None: ...
    class Stored(_message.Message):
        __slots__ = ("store", "type", "pick", "file", "of", "record", "shared", "first")
        class File(_message.Message):
            __slots__ = ("name", "digest")
            NAME_FIELD_NUMBER: _ClassVar[int]
            DIGEST_FIELD_NUMBER: _ClassVar[int]
            name: str
            digest: int
            def __init__(self, name: _Optional[str] = ..., digest: _Optional[int] = ...) -> None: ...
        STORE_FIELD_NUMBER: _ClassVar[int]
        TYPE_FIELD_NUMBER: _ClassVar[int]
        PICK_FIELD_NUMBER: _ClassVar[int]
        FILE_FIELD_NUMBER: _ClassVar[int]
        OF_FIELD_NUMBER: _ClassVar[int]
        RECORD_FIELD_NUMBER: _ClassVar[int]
        SHARED_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        store: str
        type: _computation_pb2.Type
        pick: _containers.RepeatedScalarFieldContainer[int]
        file: _containers.RepeatedCompositeFieldContainer[Packed.Stored.File]
        of: _containers.RepeatedScalarFieldContainer[int]
        record: _containers.RepeatedScalarFieldContainer[int]
        shared: Packed
        first: int
        def __init__(self, store: _Optional[str] = ..., type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., pick: _Optional[_Iterable[int]] = ..., file: _Optional[_Iterable[_Union[Packed.Stored.File, _Mapping]]] = ..., of: _Optional[_Iterable[int]] = ..., record: _Optional[_Iterable[int]] = ..., shared: _Optional[_Union[Packed, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    array: _array_pb2.Array
    raw: Packed.Raw
    struct: Packed.Members
    column: _array_pb2.Array
    rows: Packed.Raw
    clients: Packed.Members
    same: Packed.Same
    fields: Packed.Fields
    computation: _computation_pb2.Computation
    sequences: Packed.Sequences
    references: Packed.References
    stored: Packed.Stored
    def __init__(self, array: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., raw: _Optional[_Union[Packed.Raw, _Mapping]] = ..., struct: _Optional[_Union[Packed.Members, _Mapping]] = ..., column: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., rows: _Optional[_Union[Packed.Raw, _Mapping]] = ..., clients: _Optional[_Union[Packed.Members, _Mapping]] = ..., same: _Optional[_Union[Packed.Same, _Mapping]] = ..., fields: _Optional[_Union[Packed.Fields, _Mapping]] = ..., computation: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., sequences: _Optional[_Union[Packed.Sequences, _Mapping]] = ..., references: _Optional[_Union[Packed.References, _Mapping]] = ..., stored: _Optional[_Union[Packed.Stored, _Mapping]] = ...) -> None: ...

class PhaseRequest(_message.Message):
    __slots__ = ("executor", "first_client", "clients", "program", "input", "fold", "held", "isolate", "suspect", "span", "hand_in_seconds", "id", "tolerance", "guarded", "tells", "after", "origin", "store", "packed_program", "same_bits")
    class Input(_message.Message):
        __slots__ = ("type", "value", "keep", "kept", "first_member", "part", "clients")
        TYPE_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        KEEP_FIELD_NUMBER: _ClassVar[int]
        KEPT_FIELD_NUMBER: _ClassVar[int]
        FIRST_MEMBER_FIELD_NUMBER: _ClassVar[int]
        PART_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        type: _computation_pb2.Type
        value: Packed
        keep: str
        kept: str
        first_member: int
        part: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Input]
        clients: int
        def __init__(self, type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., value: _Optional[_Union[Packed, _Mapping]] = ..., keep: _Optional[str] = ..., kept: _Optional[str] = ..., first_member: _Optional[int] = ..., part: _Optional[_Iterable[_Union[PhaseRequest.Input, _Mapping]]] = ..., clients: _Optional[int] = ...) -> None: ...
    class Function(_message.Message):
        __slots__ = ("computation", "capture", "packed")
        COMPUTATION_FIELD_NUMBER: _ClassVar[int]
        CAPTURE_FIELD_NUMBER: _ClassVar[int]
        PACKED_FIELD_NUMBER: _ClassVar[int]
        computation: _computation_pb2.Computation
        capture: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Input]
        packed: PhaseRequest.Input
        def __init__(self, computation: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., capture: _Optional[_Iterable[_Union[PhaseRequest.Input, _Mapping]]] = ..., packed: _Optional[_Union[PhaseRequest.Input, _Mapping]] = ...) -> None: ...
    class Fold(_message.Message):
        __slots__ = ("uri", "result", "argument", "function")
        URI_FIELD_NUMBER: _ClassVar[int]
        RESULT_FIELD_NUMBER: _ClassVar[int]
        ARGUMENT_FIELD_NUMBER: _ClassVar[int]
        FUNCTION_FIELD_NUMBER: _ClassVar[int]
        uri: str
        result: _containers.RepeatedScalarFieldContainer[int]
        argument: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Input]
        function: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Function]
        def __init__(self, uri: _Optional[str] = ..., result: _Optional[_Iterable[int]] = ..., argument: _Optional[_Iterable[_Union[PhaseRequest.Input, _Mapping]]] = ..., function: _Optional[_Iterable[_Union[PhaseRequest.Function, _Mapping]]] = ...) -> None: ...
    class Tolerance(_message.Message):
        __slots__ = ("absent", "client_seconds", "retries", "retries_elsewhere", "ends", "enough")
        ABSENT_FIELD_NUMBER: _ClassVar[int]
        CLIENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
        RETRIES_FIELD_NUMBER: _ClassVar[int]
        RETRIES_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
        ENDS_FIELD_NUMBER: _ClassVar[int]
        ENOUGH_FIELD_NUMBER: _ClassVar[int]
        absent: _containers.RepeatedScalarFieldContainer[int]
        client_seconds: float
        retries: int
        retries_elsewhere: bool
        ends: bool
        enough: int
        def __init__(self, absent: _Optional[_Iterable[int]] = ..., client_seconds: _Optional[float] = ..., retries: _Optional[int] = ..., retries_elsewhere: bool = ..., ends: bool = ..., enough: _Optional[int] = ...) -> None: ...
    class Store(_message.Message):
        __slots__ = ("held", "store", "name", "clients")
        HELD_FIELD_NUMBER: _ClassVar[int]
        STORE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        held: int
        store: str
        name: str
        clients: bytes
        def __init__(self, held: _Optional[int] = ..., store: _Optional[str] = ..., name: _Optional[str] = ..., clients: _Optional[bytes] = ...) -> None: ...
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    FOLD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    HAND_IN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    GUARDED_FIELD_NUMBER: _ClassVar[int]
    TELLS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PACKED_PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SAME_BITS_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    first_client: int
    clients: int
    program: _computation_pb2.Computation
    input: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Input]
    fold: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Fold]
    held: _containers.RepeatedScalarFieldContainer[int]
    isolate: bool
    suspect: _containers.RepeatedScalarFieldContainer[int]
    span: Span
    hand_in_seconds: float
    id: str
    tolerance: PhaseRequest.Tolerance
    guarded: bool
    tells: bool
    after: str
    origin: Origin
    store: _containers.RepeatedCompositeFieldContainer[PhaseRequest.Store]
    packed_program: PhaseRequest.Input
    same_bits: bool
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., first_client: _Optional[int] = ..., clients: _Optional[int] = ..., program: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., input: _Optional[_Iterable[_Union[PhaseRequest.Input, _Mapping]]] = ..., fold: _Optional[_Iterable[_Union[PhaseRequest.Fold, _Mapping]]] = ..., held: _Optional[_Iterable[int]] = ..., isolate: bool = ..., suspect: _Optional[_Iterable[int]] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., hand_in_seconds: _Optional[float] = ..., id: _Optional[str] = ..., tolerance: _Optional[_Union[PhaseRequest.Tolerance, _Mapping]] = ..., guarded: bool = ..., tells: bool = ..., after: _Optional[str] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., store: _Optional[_Iterable[_Union[PhaseRequest.Store, _Mapping]]] = ..., packed_program: _Optional[_Union[PhaseRequest.Input, _Mapping]] = ..., same_bits: bool = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("why", "server")
    class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Origin.Why]
        LOST: _ClassVar[Origin.Why]
        MOVED: _ClassVar[Origin.Why]
        COPIED: _ClassVar[Origin.Why]
    UNKNOWN: Origin.Why
    LOST: Origin.Why
    MOVED: Origin.Why
    COPIED: Origin.Why
    WHY_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    why: Origin.Why
    server: str
    def __init__(self, why: _Optional[_Union[Origin.Why, str]] = ..., server: _Optional[str] = ...) -> None: ...

class ShortenPhaseRequest(_message.Message):
    __slots__ = ("executor", "id", "clients_per_second", "ends")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    executor: _executor_pb2.ExecutorId
    id: str
    clients_per_second: float
    ends: bool
    def __init__(self, executor: _Optional[_Union[_executor_pb2.ExecutorId, _Mapping]] = ..., id: _Optional[str] = ..., clients_per_second: _Optional[float] = ..., ends: bool = ...) -> None: ...

class ShortenPhaseResponse(_message.Message):
    __slots__ = ("stop", "done", "ends")
    STOP_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    stop: int
    done: int
    ends: bool
    def __init__(self, stop: _Optional[int] = ..., done: _Optional[int] = ..., ends: bool = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("trace", "call", "id")
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    trace: str
    call: str
    id: str
    def __init__(self, trace: _Optional[str] = ..., call: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class PhaseResponse(_message.Message):
    __slots__ = ("fold", "held", "kept", "differing_module", "handed_in", "shortened", "failure", "again", "unfinished", "ran")
    class Partial(_message.Message):
        __slots__ = ("level", "position", "value")
        LEVEL_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        level: int
        position: int
        value: Packed
        def __init__(self, level: _Optional[int] = ..., position: _Optional[int] = ..., value: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...
    class Tree(_message.Message):
        __slots__ = ("partial",)
        PARTIAL_FIELD_NUMBER: _ClassVar[int]
        partial: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Partial]
        def __init__(self, partial: _Optional[_Iterable[_Union[PhaseResponse.Partial, _Mapping]]] = ...) -> None: ...
    class Contribution(_message.Message):
        __slots__ = ("tree", "clients", "weights", "value")
        TREE_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        WEIGHTS_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        tree: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Tree]
        clients: int
        weights: PhaseResponse.Tree
        value: _containers.RepeatedCompositeFieldContainer[Packed]
        def __init__(self, tree: _Optional[_Iterable[_Union[PhaseResponse.Tree, _Mapping]]] = ..., clients: _Optional[int] = ..., weights: _Optional[_Union[PhaseResponse.Tree, _Mapping]] = ..., value: _Optional[_Iterable[_Union[Packed, _Mapping]]] = ...) -> None: ...
    class Failure(_message.Message):
        __slots__ = ("client", "status")
        CLIENT_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        client: int
        status: Status
        def __init__(self, client: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...
    class Clients(_message.Message):
        __slots__ = ("first_client", "clients")
        FIRST_CLIENT_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        first_client: int
        clients: int
        def __init__(self, first_client: _Optional[int] = ..., clients: _Optional[int] = ...) -> None: ...
    class Ran(_message.Message):
        __slots__ = ("first_client", "clients", "seconds")
        FIRST_CLIENT_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        first_client: int
        clients: int
        seconds: float
        def __init__(self, first_client: _Optional[int] = ..., clients: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...
    FOLD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_MODULE_FIELD_NUMBER: _ClassVar[int]
    HANDED_IN_FIELD_NUMBER: _ClassVar[int]
    SHORTENED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    fold: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Contribution]
    held: _containers.RepeatedCompositeFieldContainer[Packed]
    kept: _containers.RepeatedScalarFieldContainer[str]
    differing_module: _containers.RepeatedScalarFieldContainer[str]
    handed_in: int
    shortened: int
    failure: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Failure]
    again: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Failure]
    unfinished: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Clients]
    ran: _containers.RepeatedCompositeFieldContainer[PhaseResponse.Ran]
    def __init__(self, fold: _Optional[_Iterable[_Union[PhaseResponse.Contribution, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[Packed, _Mapping]]] = ..., kept: _Optional[_Iterable[str]] = ..., differing_module: _Optional[_Iterable[str]] = ..., handed_in: _Optional[int] = ..., shortened: _Optional[int] = ..., failure: _Optional[_Iterable[_Union[PhaseResponse.Failure, _Mapping]]] = ..., again: _Optional[_Iterable[_Union[PhaseResponse.Failure, _Mapping]]] = ..., unfinished: _Optional[_Iterable[_Union[PhaseResponse.Clients, _Mapping]]] = ..., ran: _Optional[_Iterable[_Union[PhaseResponse.Ran, _Mapping]]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "uptime_seconds", "session", "values", "bytes", "running", "calls", "seconds_until_stop", "threads", "busy_threads", "abandoned_threads", "resident_bytes", "stalls", "longest_stall_seconds", "work", "max_threads", "limit", "phase", "dispatcher", "streams", "streams_at", "data_worker", "compilations", "compilations_from_cache", "compilation_seconds", "process")
    class Calls(_message.Message):
        __slots__ = ("method", "code", "count")
        METHOD_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        method: str
        code: str
        count: int
        def __init__(self, method: _Optional[str] = ..., code: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...
    class Session(_message.Message):
        __slots__ = ("id", "clients", "values", "bytes", "lease_seconds_left", "started_running", "started_ended", "started_failed", "started_waiting")
        ID_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASE_SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
        STARTED_RUNNING_FIELD_NUMBER: _ClassVar[int]
        STARTED_ENDED_FIELD_NUMBER: _ClassVar[int]
        STARTED_FAILED_FIELD_NUMBER: _ClassVar[int]
        STARTED_WAITING_FIELD_NUMBER: _ClassVar[int]
        id: str
        clients: int
        values: int
        bytes: int
        lease_seconds_left: float
        started_running: int
        started_ended: int
        started_failed: int
        started_waiting: int
        def __init__(self, id: _Optional[str] = ..., clients: _Optional[int] = ..., values: _Optional[int] = ..., bytes: _Optional[int] = ..., lease_seconds_left: _Optional[float] = ..., started_running: _Optional[int] = ..., started_ended: _Optional[int] = ..., started_failed: _Optional[int] = ..., started_waiting: _Optional[int] = ...) -> None: ...
    class Limit(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: float
        def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class Phase(_message.Message):
        __slots__ = ("session", "first_client", "clients", "done", "running", "failed", "handed_in", "left", "origin", "lost", "moved", "twice")
        SESSION_FIELD_NUMBER: _ClassVar[int]
        FIRST_CLIENT_FIELD_NUMBER: _ClassVar[int]
        CLIENTS_FIELD_NUMBER: _ClassVar[int]
        DONE_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        HANDED_IN_FIELD_NUMBER: _ClassVar[int]
        LEFT_FIELD_NUMBER: _ClassVar[int]
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        LOST_FIELD_NUMBER: _ClassVar[int]
        MOVED_FIELD_NUMBER: _ClassVar[int]
        TWICE_FIELD_NUMBER: _ClassVar[int]
        session: str
        first_client: int
        clients: int
        done: int
        running: int
        failed: int
        handed_in: int
        left: int
        origin: Origin
        lost: int
        moved: int
        twice: int
        def __init__(self, session: _Optional[str] = ..., first_client: _Optional[int] = ..., clients: _Optional[int] = ..., done: _Optional[int] = ..., running: _Optional[int] = ..., failed: _Optional[int] = ..., handed_in: _Optional[int] = ..., left: _Optional[int] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., lost: _Optional[int] = ..., moved: _Optional[int] = ..., twice: _Optional[int] = ...) -> None: ...
    class Dispatcher(_message.Message):
        __slots__ = ("datasets", "passes", "consumers", "worker")
        DATASETS_FIELD_NUMBER: _ClassVar[int]
        PASSES_FIELD_NUMBER: _ClassVar[int]
        CONSUMERS_FIELD_NUMBER: _ClassVar[int]
        WORKER_FIELD_NUMBER: _ClassVar[int]
        datasets: int
        passes: int
        consumers: int
        worker: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, datasets: _Optional[int] = ..., passes: _Optional[int] = ..., consumers: _Optional[int] = ..., worker: _Optional[_Iterable[str]] = ...) -> None: ...
    class DataWorker(_message.Message):
        __slots__ = ("attends", "streams", "ranges", "elements", "bytes")
        ATTENDS_FIELD_NUMBER: _ClassVar[int]
        STREAMS_FIELD_NUMBER: _ClassVar[int]
        RANGES_FIELD_NUMBER: _ClassVar[int]
        ELEMENTS_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        attends: bool
        streams: int
        ranges: int
        elements: int
        bytes: int
        def __init__(self, attends: bool = ..., streams: _Optional[int] = ..., ranges: _Optional[int] = ..., elements: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_UNTIL_STOP_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    BUSY_THREADS_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_THREADS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DISPATCHER_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_AT_FIELD_NUMBER: _ClassVar[int]
    DATA_WORKER_FIELD_NUMBER: _ClassVar[int]
    COMPILATIONS_FIELD_NUMBER: _ClassVar[int]
    COMPILATIONS_FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    COMPILATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_seconds: float
    session: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.Session]
    values: int
    bytes: int
    running: int
    calls: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.Calls]
    seconds_until_stop: float
    threads: int
    busy_threads: int
    abandoned_threads: int
    resident_bytes: int
    stalls: int
    longest_stall_seconds: float
    work: _containers.RepeatedCompositeFieldContainer[Work]
    max_threads: int
    limit: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.Limit]
    phase: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.Phase]
    dispatcher: GetStatusResponse.Dispatcher
    streams: int
    streams_at: str
    data_worker: GetStatusResponse.DataWorker
    compilations: int
    compilations_from_cache: int
    compilation_seconds: float
    process: int
    def __init__(self, version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., session: _Optional[_Iterable[_Union[GetStatusResponse.Session, _Mapping]]] = ..., values: _Optional[int] = ..., bytes: _Optional[int] = ..., running: _Optional[int] = ..., calls: _Optional[_Iterable[_Union[GetStatusResponse.Calls, _Mapping]]] = ..., seconds_until_stop: _Optional[float] = ..., threads: _Optional[int] = ..., busy_threads: _Optional[int] = ..., abandoned_threads: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., stalls: _Optional[int] = ..., longest_stall_seconds: _Optional[float] = ..., work: _Optional[_Iterable[_Union[Work, _Mapping]]] = ..., max_threads: _Optional[int] = ..., limit: _Optional[_Iterable[_Union[GetStatusResponse.Limit, _Mapping]]] = ..., phase: _Optional[_Iterable[_Union[GetStatusResponse.Phase, _Mapping]]] = ..., dispatcher: _Optional[_Union[GetStatusResponse.Dispatcher, _Mapping]] = ..., streams: _Optional[int] = ..., streams_at: _Optional[str] = ..., data_worker: _Optional[_Union[GetStatusResponse.DataWorker, _Mapping]] = ..., compilations: _Optional[int] = ..., compilations_from_cache: _Optional[int] = ..., compilation_seconds: _Optional[float] = ..., process: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[Detail]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[Detail, _Mapping]]] = ...) -> None: ...

class Detail(_message.Message):
    __slots__ = ("type_url", "value")
    TYPE_URL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    type_url: str
    value: bytes
    def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("error", "message", "traceback", "path", "computation_name", "client_index")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    traceback: str
    path: _containers.RepeatedScalarFieldContainer[str]
    computation_name: str
    client_index: int
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., computation_name: _Optional[str] = ..., client_index: _Optional[int] = ...) -> None: ...
