"""Lets in what clients send as far as a service's limits allow."""

from collections.abc import Sequence

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_sizes import count_leaves, count_name_bytes, least_leaves, struct_depth
from fedstack.computations.types.type_structure import recent_types, type_from_proto
from fedstack.executors.worker.admission import Admission
from fedstack.service.host.limits import ServiceLimits, check_sizes, exceeded


class LimitedAdmission(Admission):
    """Refuses what is larger than clients may have.

    Args:
      policy: Which leaves they may bring.
      limits: How much they may have.
    """

    def __init__(self, policy: CarrierPolicy, limits: ServiceLimits) -> None:
        super().__init__(policy)
        self.scope = self.scope.replace(max_steps=limits.max_steps)
        self._limits = limits

    def check(self, computation: computation_pb2.Computation) -> Sequence[computation_pb2.Computation]:
        self._check_names(computation)
        self.read_type(computation.type)
        return super().check(computation)

    def check_clients(self, clients: int) -> None:
        """Checks the number of clients of a session or phase.

        Raises:
          ResourceLimitError: If it is larger than a client may ask for.
        """
        if clients > self._limits.max_clients:
            raise exceeded(self._limits, "max_clients", clients, "use more workers")

    def check_size(self, size: int, spare: int = 0) -> None:
        """Checks the size of a value or phase.

        Raises:
          ResourceLimitError: If it is larger than a client may send.
        """
        if size - spare > self._limits.max_value_bytes:
            raise exceeded(self._limits, "max_value_bytes", f"about {size}", "send less at once")

    def check_type(self, type_spec: Type) -> None:
        """Checks the type of what a client sends.

        Raises:
          ResourceLimitError: If it has too many tensors, structs inside of each other, or bytes of names.
        """
        check_sizes(self._limits, count_leaves(type_spec), struct_depth(type_spec))
        self._check_names(type_spec.to_proto())

    def read_type(self, proto: computation_pb2.Type) -> Type:
        """Returns the type that a client sends.

        Raises:
          InvalidComputationError: If the proto describes no type.
          ResourceLimitError: If it has too many tensors, structs inside of each other, or bytes of names.
        """
        self._check_names(proto)
        check_sizes(self._limits, least_leaves(proto, self._limits.max_leaves), 0)  # to make a large one takes long
        type_spec = type_from_proto(proto)
        check_sizes(self._limits, count_leaves(type_spec), struct_depth(type_spec))
        return type_spec

    def _check_names(self, message: computation_pb2.Type | computation_pb2.Computation) -> None:
        size = message.ByteSize()
        recent_types.received(size)
        if size > self._limits.max_name_bytes:  # a small message has no more of them
            found = count_name_bytes(message, self._limits.max_name_bytes)
            if found > self._limits.max_name_bytes:
                raise exceeded(self._limits, "max_name_bytes", found, "give shorter names")

    @property
    def max_bytes(self) -> int:
        return self._limits.max_value_bytes
