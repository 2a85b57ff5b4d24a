from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ClientDataset(_message.Message):
    __slots__ = ("dispatcher", "digest", "client_column", "client")
    DISPATCHER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_COLUMN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    dispatcher: str
    digest: bytes
    client_column: str
    client: bytes
    def __init__(self, dispatcher: _Optional[str] = ..., digest: _Optional[bytes] = ..., client_column: _Optional[str] = ..., client: _Optional[bytes] = ...) -> None: ...
