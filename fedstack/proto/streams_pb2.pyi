from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class OpenStreamRequest(_message.Message):
    __slots__ = ("protocol", "version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class OpenStreamResponse(_message.Message):
    __slots__ = ("protocol", "version", "port", "ticket", "refusal")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    port: int
    ticket: bytes
    refusal: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., port: _Optional[int] = ..., ticket: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...

class StreamHello(_message.Message):
    __slots__ = ("protocol", "version", "ticket", "token")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    ticket: bytes
    token: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., ticket: _Optional[bytes] = ..., token: _Optional[str] = ...) -> None: ...

class StreamWelcome(_message.Message):
    __slots__ = ("protocol", "version", "takes_files")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAKES_FILES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    takes_files: bool
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., takes_files: bool = ...) -> None: ...
