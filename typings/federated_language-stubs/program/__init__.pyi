import abc

from federated_language import FederatedType

class FederatedDataSourceIterator(abc.ABC):
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
