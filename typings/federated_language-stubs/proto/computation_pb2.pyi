from google.protobuf import any_pb2 as _any_pb2
from federated_language.proto import array_pb2 as _array_pb2
from federated_language.proto import data_type_pb2 as _data_type_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Computation(_message.Message):
    __slots__ = ("type", "tensorflow", "intrinsic", "data", "block", "reference", "call", "struct", "selection", "placement", "literal", "xla")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_FIELD_NUMBER: _ClassVar[int]
    INTRINSIC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    XLA_FIELD_NUMBER: _ClassVar[int]
    type: Type
    tensorflow: TensorFlow
    intrinsic: Intrinsic
    data: Data
    block: Block
    reference: Reference
    call: Call
    struct: Struct
    selection: Selection
    placement: Placement
    literal: Literal
    xla: Xla
    def __init__(self, type: _Optional[_Union[Type, _Mapping]] = ..., tensorflow: _Optional[_Union[TensorFlow, _Mapping]] = ..., intrinsic: _Optional[_Union[Intrinsic, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., block: _Optional[_Union[Block, _Mapping]] = ..., reference: _Optional[_Union[Reference, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., struct: _Optional[_Union[Struct, _Mapping]] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., literal: _Optional[_Union[Literal, _Mapping]] = ..., xla: _Optional[_Union[Xla, _Mapping]] = ..., **kwargs) -> None: ...

class Type(_message.Message):
    __slots__ = ("function", "struct", "sequence", "tensor", "abstract", "placement", "federated")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    ABSTRACT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    FEDERATED_FIELD_NUMBER: _ClassVar[int]
    function: FunctionType
    struct: StructType
    sequence: SequenceType
    tensor: TensorType
    abstract: AbstractType
    placement: PlacementType
    federated: FederatedType
    def __init__(self, function: _Optional[_Union[FunctionType, _Mapping]] = ..., struct: _Optional[_Union[StructType, _Mapping]] = ..., sequence: _Optional[_Union[SequenceType, _Mapping]] = ..., tensor: _Optional[_Union[TensorType, _Mapping]] = ..., abstract: _Optional[_Union[AbstractType, _Mapping]] = ..., placement: _Optional[_Union[PlacementType, _Mapping]] = ..., federated: _Optional[_Union[FederatedType, _Mapping]] = ...) -> None: ...

class FunctionType(_message.Message):
    __slots__ = ("parameter", "result")
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    parameter: Type
    result: Type
    def __init__(self, parameter: _Optional[_Union[Type, _Mapping]] = ..., result: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class StructType(_message.Message):
    __slots__ = ("element",)
    class Element(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: Type
        def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    element: _containers.RepeatedCompositeFieldContainer[StructType.Element]
    def __init__(self, element: _Optional[_Iterable[_Union[StructType.Element, _Mapping]]] = ...) -> None: ...

class SequenceType(_message.Message):
    __slots__ = ("element",)
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    element: Type
    def __init__(self, element: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class TensorType(_message.Message):
    __slots__ = ("dtype", "dims", "unknown_rank")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_RANK_FIELD_NUMBER: _ClassVar[int]
    dtype: _data_type_pb2.DataType
    dims: _containers.RepeatedScalarFieldContainer[int]
    unknown_rank: bool
    def __init__(self, dtype: _Optional[_Union[_data_type_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., unknown_rank: bool = ...) -> None: ...

class AbstractType(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: str
    def __init__(self, label: _Optional[str] = ...) -> None: ...

class PlacementSpec(_message.Message):
    __slots__ = ("label", "value")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    label: PlacementLabel
    value: Placement
    def __init__(self, label: _Optional[_Union[PlacementLabel, _Mapping]] = ..., value: _Optional[_Union[Placement, _Mapping]] = ...) -> None: ...

class PlacementLabel(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: str
    def __init__(self, label: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("uri",)
    URI_FIELD_NUMBER: _ClassVar[int]
    uri: str
    def __init__(self, uri: _Optional[str] = ...) -> None: ...

class FederatedType(_message.Message):
    __slots__ = ("placement", "all_equal", "member")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ALL_EQUAL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    placement: PlacementSpec
    all_equal: bool
    member: Type
    def __init__(self, placement: _Optional[_Union[PlacementSpec, _Mapping]] = ..., all_equal: bool = ..., member: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class PlacementType(_message.Message):
    __slots__ = ("instance_label",)
    INSTANCE_LABEL_FIELD_NUMBER: _ClassVar[int]
    instance_label: PlacementLabel
    def __init__(self, instance_label: _Optional[_Union[PlacementLabel, _Mapping]] = ...) -> None: ...

class TensorFlow(_message.Message):
    __slots__ = ("graph_def", "initialize_op", "session_token_tensor_name", "parameter", "result", "cache_key")
    class Binding(_message.Message):
        __slots__ = ("struct", "tensor", "sequence")
        STRUCT_FIELD_NUMBER: _ClassVar[int]
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        struct: TensorFlow.StructBinding
        tensor: TensorFlow.TensorBinding
        sequence: TensorFlow.SequenceBinding
        def __init__(self, struct: _Optional[_Union[TensorFlow.StructBinding, _Mapping]] = ..., tensor: _Optional[_Union[TensorFlow.TensorBinding, _Mapping]] = ..., sequence: _Optional[_Union[TensorFlow.SequenceBinding, _Mapping]] = ...) -> None: ...
    class StructBinding(_message.Message):
        __slots__ = ("element",)
        ELEMENT_FIELD_NUMBER: _ClassVar[int]
        element: _containers.RepeatedCompositeFieldContainer[TensorFlow.Binding]
        def __init__(self, element: _Optional[_Iterable[_Union[TensorFlow.Binding, _Mapping]]] = ...) -> None: ...
    class TensorBinding(_message.Message):
        __slots__ = ("tensor_name",)
        TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
        tensor_name: str
        def __init__(self, tensor_name: _Optional[str] = ...) -> None: ...
    class SequenceBinding(_message.Message):
        __slots__ = ("variant_tensor_name", "graph_def_tensor_name")
        VARIANT_TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
        GRAPH_DEF_TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
        variant_tensor_name: str
        graph_def_tensor_name: str
        def __init__(self, variant_tensor_name: _Optional[str] = ..., graph_def_tensor_name: _Optional[str] = ...) -> None: ...
    class CacheKey(_message.Message):
        __slots__ = ("id",)
        ID_FIELD_NUMBER: _ClassVar[int]
        id: int
        def __init__(self, id: _Optional[int] = ...) -> None: ...
    GRAPH_DEF_FIELD_NUMBER: _ClassVar[int]
    INITIALIZE_OP_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    graph_def: _any_pb2.Any
    initialize_op: str
    session_token_tensor_name: str
    parameter: TensorFlow.Binding
    result: TensorFlow.Binding
    cache_key: TensorFlow.CacheKey
    def __init__(self, graph_def: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., initialize_op: _Optional[str] = ..., session_token_tensor_name: _Optional[str] = ..., parameter: _Optional[_Union[TensorFlow.Binding, _Mapping]] = ..., result: _Optional[_Union[TensorFlow.Binding, _Mapping]] = ..., cache_key: _Optional[_Union[TensorFlow.CacheKey, _Mapping]] = ...) -> None: ...

class Intrinsic(_message.Message):
    __slots__ = ("uri",)
    URI_FIELD_NUMBER: _ClassVar[int]
    uri: str
    def __init__(self, uri: _Optional[str] = ...) -> None: ...

class Lambda(_message.Message):
    __slots__ = ("parameter_name", "result")
    PARAMETER_NAME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    parameter_name: str
    result: Computation
    def __init__(self, parameter_name: _Optional[str] = ..., result: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("local", "result")
    class Local(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: Computation
        def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    local: _containers.RepeatedCompositeFieldContainer[Block.Local]
    result: Computation
    def __init__(self, local: _Optional[_Iterable[_Union[Block.Local, _Mapping]]] = ..., result: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("function", "argument")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    function: Computation
    argument: Computation
    def __init__(self, function: _Optional[_Union[Computation, _Mapping]] = ..., argument: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...

class Struct(_message.Message):
    __slots__ = ("element",)
    class Element(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: Computation
        def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    element: _containers.RepeatedCompositeFieldContainer[Struct.Element]
    def __init__(self, element: _Optional[_Iterable[_Union[Struct.Element, _Mapping]]] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("source", "index")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    source: Computation
    index: int
    def __init__(self, source: _Optional[_Union[Computation, _Mapping]] = ..., index: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("uri", "content")
    URI_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    uri: str
    content: _any_pb2.Any
    def __init__(self, uri: _Optional[str] = ..., content: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class Xla(_message.Message):
    __slots__ = ("hlo_module", "parameter", "result")
    class Binding(_message.Message):
        __slots__ = ("struct", "tensor")
        STRUCT_FIELD_NUMBER: _ClassVar[int]
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        struct: Xla.StructBinding
        tensor: Xla.TensorBinding
        def __init__(self, struct: _Optional[_Union[Xla.StructBinding, _Mapping]] = ..., tensor: _Optional[_Union[Xla.TensorBinding, _Mapping]] = ...) -> None: ...
    class StructBinding(_message.Message):
        __slots__ = ("element",)
        ELEMENT_FIELD_NUMBER: _ClassVar[int]
        element: _containers.RepeatedCompositeFieldContainer[Xla.Binding]
        def __init__(self, element: _Optional[_Iterable[_Union[Xla.Binding, _Mapping]]] = ...) -> None: ...
    class TensorBinding(_message.Message):
        __slots__ = ("index",)
        INDEX_FIELD_NUMBER: _ClassVar[int]
        index: int
        def __init__(self, index: _Optional[int] = ...) -> None: ...
    HLO_MODULE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    hlo_module: _any_pb2.Any
    parameter: Xla.Binding
    result: Xla.Binding
    def __init__(self, hlo_module: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., parameter: _Optional[_Union[Xla.Binding, _Mapping]] = ..., result: _Optional[_Union[Xla.Binding, _Mapping]] = ...) -> None: ...

class Literal(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _array_pb2.Array
    def __init__(self, value: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...
