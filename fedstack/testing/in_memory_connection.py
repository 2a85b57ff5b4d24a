"""Connects a stub to a service in the same process, without a network."""

from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Method, Service


class InMemoryConnection(LocalConnection):
    """A connection that calls the methods of a service directly, and records the calls.

    Args:
      service: The service to connect to.
      address: The address of the service in messages.

    Attributes:
      service: The service to connect to.
      calls: The paths of the called methods, in the order of the calls.
    """

    def __init__(self, service: Service, address: str = "memory") -> None:
        methods = methods_by_path([service])
        super().__init__(lambda: methods, address)
        self.service = service
        self.calls: list[str] = []

    def _find(self, path: str) -> Method:
        self.calls.append(path)
        return super()._find(path)
