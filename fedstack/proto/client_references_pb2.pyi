from fedstack.proto import datasets_pb2 as _datasets_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientDataset(_message.Message):
    __slots__ = ("dispatcher", "digest", "client")
    DISPATCHER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    dispatcher: str
    digest: bytes
    client: bytes
    def __init__(self, dispatcher: _Optional[str] = ..., digest: _Optional[bytes] = ..., client: _Optional[bytes] = ...) -> None: ...

class ClientSelections(_message.Message):
    __slots__ = ("registered", "dataset_id", "definition", "seed", "selections")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    registered: ClientDataset
    dataset_id: str
    definition: _datasets_pb2.DatasetDefinition
    seed: bytes
    selections: int
    def __init__(self, registered: _Optional[_Union[ClientDataset, _Mapping]] = ..., dataset_id: _Optional[str] = ..., definition: _Optional[_Union[_datasets_pb2.DatasetDefinition, _Mapping]] = ..., seed: _Optional[bytes] = ..., selections: _Optional[int] = ...) -> None: ...
