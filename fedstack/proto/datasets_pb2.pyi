from federated_language.proto import array_pb2 as _array_pb2
from federated_language.proto import computation_pb2 as _computation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DatasetDefinition(_message.Message):
    __slots__ = ("element", "range", "arrays", "files", "generator", "computation", "concatenated", "zipped", "step", "client_column")
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    CONCATENATED_FIELD_NUMBER: _ClassVar[int]
    ZIPPED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_COLUMN_FIELD_NUMBER: _ClassVar[int]
    element: _computation_pb2.Type
    range: RangeSource
    arrays: ArraysSource
    files: FilesSource
    generator: GeneratorSource
    computation: ComputationSource
    concatenated: DatasetDefinitions
    zipped: DatasetDefinitions
    step: _containers.RepeatedCompositeFieldContainer[DatasetStep]
    client_column: str
    def __init__(self, element: _Optional[_Union[_computation_pb2.Type, _Mapping]] = ..., range: _Optional[_Union[RangeSource, _Mapping]] = ..., arrays: _Optional[_Union[ArraysSource, _Mapping]] = ..., files: _Optional[_Union[FilesSource, _Mapping]] = ..., generator: _Optional[_Union[GeneratorSource, _Mapping]] = ..., computation: _Optional[_Union[ComputationSource, _Mapping]] = ..., concatenated: _Optional[_Union[DatasetDefinitions, _Mapping]] = ..., zipped: _Optional[_Union[DatasetDefinitions, _Mapping]] = ..., step: _Optional[_Iterable[_Union[DatasetStep, _Mapping]]] = ..., client_column: _Optional[str] = ...) -> None: ...

class DatasetDefinitions(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: _containers.RepeatedCompositeFieldContainer[DatasetDefinition]
    def __init__(self, dataset: _Optional[_Iterable[_Union[DatasetDefinition, _Mapping]]] = ...) -> None: ...

class RangeSource(_message.Message):
    __slots__ = ("start", "stop", "step")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    step: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ArraysSource(_message.Message):
    __slots__ = ("rows", "array")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    rows: int
    array: _containers.RepeatedCompositeFieldContainer[_array_pb2.Array]
    def __init__(self, rows: _Optional[int] = ..., array: _Optional[_Iterable[_Union[_array_pb2.Array, _Mapping]]] = ...) -> None: ...

class FilesSource(_message.Message):
    __slots__ = ("format", "path", "delimiter", "client", "parts")
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[FilesSource.Format]
        NPY: _ClassVar[FilesSource.Format]
        NPZ: _ClassVar[FilesSource.Format]
        CSV: _ClassVar[FilesSource.Format]
        JSON_LINES: _ClassVar[FilesSource.Format]
        PARQUET: _ClassVar[FilesSource.Format]
        ARROW: _ClassVar[FilesSource.Format]
    UNSPECIFIED: FilesSource.Format
    NPY: FilesSource.Format
    NPZ: FilesSource.Format
    CSV: FilesSource.Format
    JSON_LINES: FilesSource.Format
    PARQUET: FilesSource.Format
    ARROW: FilesSource.Format
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DELIMITER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    format: FilesSource.Format
    path: _containers.RepeatedScalarFieldContainer[str]
    delimiter: str
    client: str
    parts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[_Union[FilesSource.Format, str]] = ..., path: _Optional[_Iterable[str]] = ..., delimiter: _Optional[str] = ..., client: _Optional[str] = ..., parts: _Optional[_Iterable[int]] = ...) -> None: ...

class GeneratorSource(_message.Message):
    __slots__ = ("name", "splits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    splits: int
    def __init__(self, name: _Optional[str] = ..., splits: _Optional[int] = ...) -> None: ...

class ComputationSource(_message.Message):
    __slots__ = ("computation", "splits")
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    computation: _computation_pb2.Computation
    splits: int
    def __init__(self, computation: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., splits: _Optional[int] = ...) -> None: ...

class DatasetStep(_message.Message):
    __slots__ = ("map", "filter", "batch", "shuffle", "take", "skip", "repeat", "enumerate", "prefetch", "padded_batch", "window", "interleave", "unbatch", "shard", "cache")
    class Batch(_message.Message):
        __slots__ = ("size", "drop_remainder")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
        size: int
        drop_remainder: bool
        def __init__(self, size: _Optional[int] = ..., drop_remainder: bool = ...) -> None: ...
    class Shuffle(_message.Message):
        __slots__ = ("buffer_size", "seed")
        BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        buffer_size: int
        seed: bytes
        def __init__(self, buffer_size: _Optional[int] = ..., seed: _Optional[bytes] = ...) -> None: ...
    class Repeat(_message.Message):
        __slots__ = ("count",)
        COUNT_FIELD_NUMBER: _ClassVar[int]
        count: int
        def __init__(self, count: _Optional[int] = ...) -> None: ...
    class Padding(_message.Message):
        __slots__ = ("size", "value")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        size: _containers.RepeatedScalarFieldContainer[int]
        value: _array_pb2.Array
        def __init__(self, size: _Optional[_Iterable[int]] = ..., value: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...
    class PaddedBatch(_message.Message):
        __slots__ = ("size", "drop_remainder", "padding")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
        PADDING_FIELD_NUMBER: _ClassVar[int]
        size: int
        drop_remainder: bool
        padding: _containers.RepeatedCompositeFieldContainer[DatasetStep.Padding]
        def __init__(self, size: _Optional[int] = ..., drop_remainder: bool = ..., padding: _Optional[_Iterable[_Union[DatasetStep.Padding, _Mapping]]] = ...) -> None: ...
    class Window(_message.Message):
        __slots__ = ("size", "shift", "stride", "drop_remainder")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        SHIFT_FIELD_NUMBER: _ClassVar[int]
        STRIDE_FIELD_NUMBER: _ClassVar[int]
        DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
        size: int
        shift: int
        stride: int
        drop_remainder: bool
        def __init__(self, size: _Optional[int] = ..., shift: _Optional[int] = ..., stride: _Optional[int] = ..., drop_remainder: bool = ...) -> None: ...
    class Interleave(_message.Message):
        __slots__ = ("function", "cycle_length", "block_length")
        FUNCTION_FIELD_NUMBER: _ClassVar[int]
        CYCLE_LENGTH_FIELD_NUMBER: _ClassVar[int]
        BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
        function: _computation_pb2.Computation
        cycle_length: int
        block_length: int
        def __init__(self, function: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., cycle_length: _Optional[int] = ..., block_length: _Optional[int] = ...) -> None: ...
    class Shard(_message.Message):
        __slots__ = ("shards", "index")
        SHARDS_FIELD_NUMBER: _ClassVar[int]
        INDEX_FIELD_NUMBER: _ClassVar[int]
        shards: int
        index: int
        def __init__(self, shards: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...
    class Nothing(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    MAP_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    ENUMERATE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    PADDED_BATCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_FIELD_NUMBER: _ClassVar[int]
    UNBATCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    map: _computation_pb2.Computation
    filter: _computation_pb2.Computation
    batch: DatasetStep.Batch
    shuffle: DatasetStep.Shuffle
    take: int
    skip: int
    repeat: DatasetStep.Repeat
    enumerate: int
    prefetch: int
    padded_batch: DatasetStep.PaddedBatch
    window: DatasetStep.Window
    interleave: DatasetStep.Interleave
    unbatch: DatasetStep.Nothing
    shard: DatasetStep.Shard
    cache: DatasetStep.Nothing
    def __init__(self, map: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., filter: _Optional[_Union[_computation_pb2.Computation, _Mapping]] = ..., batch: _Optional[_Union[DatasetStep.Batch, _Mapping]] = ..., shuffle: _Optional[_Union[DatasetStep.Shuffle, _Mapping]] = ..., take: _Optional[int] = ..., skip: _Optional[int] = ..., repeat: _Optional[_Union[DatasetStep.Repeat, _Mapping]] = ..., enumerate: _Optional[int] = ..., prefetch: _Optional[int] = ..., padded_batch: _Optional[_Union[DatasetStep.PaddedBatch, _Mapping]] = ..., window: _Optional[_Union[DatasetStep.Window, _Mapping]] = ..., interleave: _Optional[_Union[DatasetStep.Interleave, _Mapping]] = ..., unbatch: _Optional[_Union[DatasetStep.Nothing, _Mapping]] = ..., shard: _Optional[_Union[DatasetStep.Shard, _Mapping]] = ..., cache: _Optional[_Union[DatasetStep.Nothing, _Mapping]] = ...) -> None: ...
