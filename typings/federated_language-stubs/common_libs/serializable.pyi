import abc

class Serializable(abc.ABC):
    @classmethod
    @abc.abstractmethod
    def from_bytes(cls, buffer: bytes) -> Serializable: ...
    @abc.abstractmethod
    def to_bytes(self) -> bytes: ...
