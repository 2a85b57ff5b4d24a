from federated_language.proto import array_pb2 as _array_pb2
from federated_language.proto import computation_pb2 as _computation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutorId(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ValueRef(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Cardinality(_message.Message):
    __slots__ = ("placement", "cardinality")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    placement: _computation_pb2.Placement
    cardinality: int
    def __init__(self, placement: _Optional[_Union[_computation_pb2.Placement, _Mapping]] = ..., cardinality: _Optional[int] = ...) -> None: ...

class GetExecutorRequest(_message.Message):
    __slots__ = ("cardinalities",)
    CARDINALITIES_FIELD_NUMBER: _ClassVar[int]
    cardinalities: _containers.RepeatedCompositeFieldContainer[Cardinality]
    def __init__(self, cardinalities: _Optional[_Iterable[_Union[Cardinality, _Mapping]]] = ...) -> None: ...

class GetExecutorResponse(_message.Message):
    __slots__ = ("executor",)
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    executor: ExecutorId
    def __init__(self, executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class CreateValueRequest(_message.Message):
    __slots__ = ("value", "executor")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    value: Value
    executor: ExecutorId
    def __init__(self, value: _Optional[_Union[Value, _Mapping]] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class CreateValueResponse(_message.Message):
    __slots__ = ("value_ref",)
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    value_ref: ValueRef
    def __init__(self, value_ref: _Optional[_Union[ValueRef, _Mapping]] = ...) -> None: ...

class CreateCallRequest(_message.Message):
    __slots__ = ("function_ref", "argument_ref", "executor")
    FUNCTION_REF_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_REF_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    function_ref: ValueRef
    argument_ref: ValueRef
    executor: ExecutorId
    def __init__(self, function_ref: _Optional[_Union[ValueRef, _Mapping]] = ..., argument_ref: _Optional[_Union[ValueRef, _Mapping]] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class CreateCallResponse(_message.Message):
    __slots__ = ("value_ref",)
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    value_ref: ValueRef
    def __init__(self, value_ref: _Optional[_Union[ValueRef, _Mapping]] = ...) -> None: ...

class CreateStructRequest(_message.Message):
    __slots__ = ("element", "executor")
    class Element(_message.Message):
        __slots__ = ("name", "value_ref")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_REF_FIELD_NUMBER: _ClassVar[int]
        name: str
        value_ref: ValueRef
        def __init__(self, name: _Optional[str] = ..., value_ref: _Optional[_Union[ValueRef, _Mapping]] = ...) -> None: ...
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    element: _containers.RepeatedCompositeFieldContainer[CreateStructRequest.Element]
    executor: ExecutorId
    def __init__(self, element: _Optional[_Iterable[_Union[CreateStructRequest.Element, _Mapping]]] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class CreateStructResponse(_message.Message):
    __slots__ = ("value_ref",)
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    value_ref: ValueRef
    def __init__(self, value_ref: _Optional[_Union[ValueRef, _Mapping]] = ...) -> None: ...

class CreateSelectionRequest(_message.Message):
    __slots__ = ("source_ref", "index", "executor")
    SOURCE_REF_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    source_ref: ValueRef
    index: int
    executor: ExecutorId
    def __init__(self, source_ref: _Optional[_Union[ValueRef, _Mapping]] = ..., index: _Optional[int] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class CreateSelectionResponse(_message.Message):
    __slots__ = ("value_ref",)
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    value_ref: ValueRef
    def __init__(self, value_ref: _Optional[_Union[ValueRef, _Mapping]] = ...) -> None: ...

class ComputeRequest(_message.Message):
    __slots__ = ("value_ref", "executor")
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    value_ref: ValueRef
    executor: ExecutorId
    def __init__(self, value_ref: _Optional[_Union[ValueRef, _Mapping]] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class ComputeResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: Value
    def __init__(self, value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class DisposeRequest(_message.Message):
    __slots__ = ("value_ref", "executor")
    VALUE_REF_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    value_ref: _containers.RepeatedCompositeFieldContainer[ValueRef]
    executor: ExecutorId
    def __init__(self, value_ref: _Optional[_Iterable[_Union[ValueRef, _Mapping]]] = ..., executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class DisposeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DisposeExecutorRequest(_message.Message):
    __slots__ = ("executor",)
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    executor: ExecutorId
    def __init__(self, executor: _Optional[_Union[ExecutorId, _Mapping]] = ...) -> None: ...

class DisposeExecutorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Value(_message.Message):
    __slots__ = ("computation", "struct", "sequence", "federated", "array")
    class Struct(_message.Message):
        __slots__ = ("element",)
        class Element(_message.Message):
            __slots__ = ("name", "value")
            NAME_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            name: str
            value: Value
            def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
        ELEMENT_FIELD_NUMBER: _ClassVar[int]
        element: _containers.RepeatedCompositeFieldContainer[Value.Struct.Element]
        def __init__(self, element: _Optional[_Iterable[_Union[Value.Struct.Element, _Mapping]]] = ...) -> None: ...
    class Sequence(_message.Message):
        __slots__ = ("element_type", "element")
        class Element(_message.Message):
            __slots__ = ("flat_value",)
            FLAT_VALUE_FIELD_NUMBER: _ClassVar[int]
            flat_value: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
            def __init__(self, flat_value: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...
        ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
        ELEMENT_FIELD_NUMBER: _ClassVar[int]
        element_type: _computation_pb2.Type
        element: _containers.RepeatedCompositeFieldContainer[Value.Sequence.Element]
        def __init__(self, element_type: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., element: _Optional[_Iterable[_Union[Value.Sequence.Element, _Mapping]]] = ...) -> None: ...
    class Federated(_message.Message):
        __slots__ = ("type", "value")
        TYPE_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        type: _computation_pb2.FederatedType
        value: _containers.RepeatedCompositeFieldContainer[Value]
        def __init__(self, type: _Optional[_Union[_computation_pb2.FederatedType, _Mapping]] = ..., value: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FEDERATED_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    computation: _computation_pb2.Computation
    struct: Value.Struct
    sequence: Value.Sequence
    federated: Value.Federated
    array: _array_pb2.Array
    def __init__(self, computation: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., struct: _Optional[_Union[Value.Struct, _Mapping]] = ..., sequence: _Optional[_Union[Value.Sequence, _Mapping]] = ..., federated: _Optional[_Union[Value.Federated, _Mapping]] = ..., array: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...
