from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PythonHandle(_message.Message):
    __slots__ = ("process", "serial", "name")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    process: str
    serial: int
    name: str
    def __init__(self, process: _Optional[str] = ..., serial: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class PythonReference(_message.Message):
    __slots__ = ("module", "qualname", "digest", "parameter", "module_digest", "vectorized")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    QUALNAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    MODULE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VECTORIZED_FIELD_NUMBER: _ClassVar[int]
    module: str
    qualname: str
    digest: bytes
    parameter: PythonContainer
    module_digest: bytes
    vectorized: bool
    def __init__(self, module: _Optional[str] = ..., qualname: _Optional[str] = ..., digest: _Optional[bytes] = ..., parameter: _Optional[_Union[PythonContainer, _Mapping]] = ..., module_digest: _Optional[bytes] = ..., vectorized: bool = ...) -> None: ...

class PythonContainer(_message.Message):
    __slots__ = ("type", "member")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    type: str
    member: _containers.RepeatedCompositeFieldContainer[PythonContainer]
    def __init__(self, type: _Optional[str] = ..., member: _Optional[_Iterable[_Union[PythonContainer, _Mapping]]] = ...) -> None: ...

class PickledPython(_message.Message):
    __slots__ = ("function", "python_version", "name", "vectorized")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VECTORIZED_FIELD_NUMBER: _ClassVar[int]
    function: bytes
    python_version: str
    name: str
    vectorized: bool
    def __init__(self, function: _Optional[bytes] = ..., python_version: _Optional[str] = ..., name: _Optional[str] = ..., vectorized: bool = ...) -> None: ...

class JaxExport(_message.Message):
    __slots__ = ("exported", "digest", "group", "group_digest", "lanes", "version", "name", "empty", "empty_digest", "fingerprint")
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    EMPTY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    exported: bytes
    digest: bytes
    group: bytes
    group_digest: bytes
    lanes: int
    version: str
    name: str
    empty: bytes
    empty_digest: bytes
    fingerprint: bytes
    def __init__(self, exported: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., group: _Optional[bytes] = ..., group_digest: _Optional[bytes] = ..., lanes: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., empty: _Optional[bytes] = ..., empty_digest: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...
