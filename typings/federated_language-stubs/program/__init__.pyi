import abc
from typing import Generic, TypeVar

from federated_language import FederatedType, Type
from federated_language.common_libs.serializable import Serializable
from federated_language.framework import SyncContext

_State = TypeVar("_State")
_Value = TypeVar("_Value")
_Key = TypeVar("_Key")

class FederatedDataSourceIterator(Serializable, abc.ABC):
    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType: ...
    @abc.abstractmethod
    def select(self, k: int | None = None) -> object: ...
    @classmethod
    @abc.abstractmethod
    def from_bytes(cls, buffer: bytes) -> FederatedDataSourceIterator: ...
    @abc.abstractmethod
    def to_bytes(self) -> bytes: ...

class FederatedDataSource(abc.ABC):
    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType: ...
    @abc.abstractmethod
    def iterator(self) -> FederatedDataSourceIterator: ...

class ProgramStateExistsError(Exception):
    def __init__(self, *, version: int, path: str) -> None: ...

class ProgramStateNotFoundError(Exception):
    def __init__(self, version: int) -> None: ...

class ProgramStateManager(abc.ABC, Generic[_State]):
    @abc.abstractmethod
    async def get_versions(self) -> list[int] | None: ...
    @abc.abstractmethod
    async def load(self, version: int, structure: _State) -> _State: ...
    async def load_latest(self, structure: _State) -> tuple[_State | None, int]: ...
    @abc.abstractmethod
    async def save(self, program_state: _State, version: int) -> None: ...

class ReleaseManager(abc.ABC, Generic[_Value, _Key]):
    @abc.abstractmethod
    async def release(self, value: _Value, key: _Key) -> None: ...

class MaterializableValueReference(abc.ABC):
    @property
    @abc.abstractmethod
    def type_signature(self) -> Type: ...
    @abc.abstractmethod
    async def get_value(self) -> object: ...

class FederatedContext(SyncContext, abc.ABC): ...

async def materialize_value(value: object) -> object: ...
def contains_only_server_placed_data(type_signature: Type) -> bool: ...
