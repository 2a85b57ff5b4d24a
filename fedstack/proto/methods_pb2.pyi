from federated_language.proto import computation_pb2 as _computation_pb2
from fedstack.proto import extensions_pb2 as _extensions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListMethodsRequest(_message.Message):
    __slots__ = ("with_calls", "protocol", "version")
    WITH_CALLS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    with_calls: bool
    protocol: int
    version: str
    def __init__(self, with_calls: bool = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListMethodsResponse(_message.Message):
    __slots__ = ("method", "protocol", "version", "max_value_bytes", "heartbeat_seconds", "uptime_seconds")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    method: _containers.RepeatedCompositeFieldContainer[MethodDescription]
    protocol: int
    version: str
    max_value_bytes: int
    heartbeat_seconds: float
    uptime_seconds: float
    def __init__(self, method: _Optional[_Iterable[_Union[MethodDescription, _Mapping]]] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ..., max_value_bytes: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., uptime_seconds: _Optional[float] = ...) -> None: ...

class MethodDescription(_message.Message):
    __slots__ = ("name", "type", "parameter", "doc", "signature", "calls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: _computation_pb2.Type
    parameter: _containers.RepeatedScalarFieldContainer[str]
    doc: str
    signature: bytes
    calls: MethodCalls
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., parameter: _Optional[_Iterable[str]] = ..., doc: _Optional[str] = ..., signature: _Optional[bytes] = ..., calls: _Optional[_Union[MethodCalls, _Mapping]] = ...) -> None: ...

class MethodCalls(_message.Message):
    __slots__ = ("ended", "failed", "running", "median_seconds", "p99_seconds")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ended: int
    failed: int
    running: int
    median_seconds: float
    p99_seconds: float
    def __init__(self, ended: _Optional[int] = ..., failed: _Optional[int] = ..., running: _Optional[int] = ..., median_seconds: _Optional[float] = ..., p99_seconds: _Optional[float] = ...) -> None: ...

class InvokeRequest(_message.Message):
    __slots__ = ("method", "signature", "argument", "timeout_seconds")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    method: str
    signature: bytes
    argument: _extensions_pb2.Packed
    timeout_seconds: float
    def __init__(self, method: _Optional[str] = ..., signature: _Optional[bytes] = ..., argument: _Optional[_Union[_extensions_pb2.Packed, _Mapping]] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class InvokeResponse(_message.Message):
    __slots__ = ("value", "other")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    value: _extensions_pb2.Packed
    other: MethodDescription
    def __init__(self, value: _Optional[_Union[_extensions_pb2.Packed, _Mapping]] = ..., other: _Optional[_Union[MethodDescription, _Mapping]] = ...) -> None: ...
