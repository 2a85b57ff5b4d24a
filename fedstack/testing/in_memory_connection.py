"""Connects a stub to a service in this process without a network between them."""

from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Method, Service


class InMemoryConnection(LocalConnection):
    """Calls the methods of a service right away, and says which were called.

    Args:
      service: The service.
      address: What it is called in messages.

    Attributes:
      service: The service.
      calls: The paths of the methods that were called.
    """

    def __init__(self, service: Service, address: str = "memory") -> None:
        methods = methods_by_path([service])
        super().__init__(lambda: methods, address)
        self.service = service
        self.calls: list[str] = []

    def _find(self, path: str) -> Method:
        self.calls.append(path)
        return super()._find(path)
