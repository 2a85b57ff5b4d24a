from federated_language.proto import data_type_pb2 as _data_type_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArrayShape(_message.Message):
    __slots__ = ("dim", "unknown_rank")
    DIM_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_RANK_FIELD_NUMBER: _ClassVar[int]
    dim: _containers.RepeatedScalarFieldContainer[int]
    unknown_rank: bool
    def __init__(self, dim: _Optional[_Iterable[int]] = ..., unknown_rank: bool = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "content", "bool_list", "int8_list", "int16_list", "int32_list", "int64_list", "uint8_list", "uint16_list", "uint32_list", "uint64_list", "float16_list", "float32_list", "float64_list", "complex64_list", "complex128_list", "bfloat16_list", "string_list")
    class BoolList(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[bool]
        def __init__(self, value: _Optional[_Iterable[bool]] = ...) -> None: ...
    class IntList(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, value: _Optional[_Iterable[int]] = ...) -> None: ...
    class Int64List(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, value: _Optional[_Iterable[int]] = ...) -> None: ...
    class Uint32List(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, value: _Optional[_Iterable[int]] = ...) -> None: ...
    class Uint64List(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, value: _Optional[_Iterable[int]] = ...) -> None: ...
    class FloatList(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, value: _Optional[_Iterable[float]] = ...) -> None: ...
    class DoubleList(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, value: _Optional[_Iterable[float]] = ...) -> None: ...
    class BytesList(_message.Message):
        __slots__ = ("value",)
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, value: _Optional[_Iterable[bytes]] = ...) -> None: ...
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BOOL_LIST_FIELD_NUMBER: _ClassVar[int]
    INT8_LIST_FIELD_NUMBER: _ClassVar[int]
    INT16_LIST_FIELD_NUMBER: _ClassVar[int]
    INT32_LIST_FIELD_NUMBER: _ClassVar[int]
    INT64_LIST_FIELD_NUMBER: _ClassVar[int]
    UINT8_LIST_FIELD_NUMBER: _ClassVar[int]
    UINT16_LIST_FIELD_NUMBER: _ClassVar[int]
    UINT32_LIST_FIELD_NUMBER: _ClassVar[int]
    UINT64_LIST_FIELD_NUMBER: _ClassVar[int]
    FLOAT16_LIST_FIELD_NUMBER: _ClassVar[int]
    FLOAT32_LIST_FIELD_NUMBER: _ClassVar[int]
    FLOAT64_LIST_FIELD_NUMBER: _ClassVar[int]
    COMPLEX64_LIST_FIELD_NUMBER: _ClassVar[int]
    COMPLEX128_LIST_FIELD_NUMBER: _ClassVar[int]
    BFLOAT16_LIST_FIELD_NUMBER: _ClassVar[int]
    STRING_LIST_FIELD_NUMBER: _ClassVar[int]
    dtype: _data_type_pb2.DataType
    shape: ArrayShape
    content: bytes
    bool_list: Array.BoolList
    int8_list: Array.IntList
    int16_list: Array.IntList
    int32_list: Array.IntList
    int64_list: Array.Int64List
    uint8_list: Array.IntList
    uint16_list: Array.IntList
    uint32_list: Array.Uint32List
    uint64_list: Array.Uint64List
    float16_list: Array.IntList
    float32_list: Array.FloatList
    float64_list: Array.DoubleList
    complex64_list: Array.FloatList
    complex128_list: Array.DoubleList
    bfloat16_list: Array.IntList
    string_list: Array.BytesList
    def __init__(self, dtype: _Optional[_Union[_data_type_pb2.DataType, str]] = ..., shape: _Optional[_Union[ArrayShape, _Mapping]] = ..., content: _Optional[bytes] = ..., bool_list: _Optional[_Union[Array.BoolList, _Mapping]] = ..., int8_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., int16_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., int32_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., int64_list: _Optional[_Union[Array.Int64List, _Mapping]] = ..., uint8_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., uint16_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., uint32_list: _Optional[_Union[Array.Uint32List, _Mapping]] = ..., uint64_list: _Optional[_Union[Array.Uint64List, _Mapping]] = ..., float16_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., float32_list: _Optional[_Union[Array.FloatList, _Mapping]] = ..., float64_list: _Optional[_Union[Array.DoubleList, _Mapping]] = ..., complex64_list: _Optional[_Union[Array.FloatList, _Mapping]] = ..., complex128_list: _Optional[_Union[Array.DoubleList, _Mapping]] = ..., bfloat16_list: _Optional[_Union[Array.IntList, _Mapping]] = ..., string_list: _Optional[_Union[Array.BytesList, _Mapping]] = ...) -> None: ...
