from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
    __slots__ = ("module", "qualname", "digest")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    QUALNAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    module: str
    qualname: str
    digest: bytes
    def __init__(self, module: _Optional[str] = ..., qualname: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class PickledPython(_message.Message):
    __slots__ = ("function", "python_version", "name")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    function: bytes
    python_version: str
    name: str
    def __init__(self, function: _Optional[bytes] = ..., python_version: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class JaxExport(_message.Message):
    __slots__ = ("exported", "digest")
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    exported: bytes
    digest: bytes
    def __init__(self, exported: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...
