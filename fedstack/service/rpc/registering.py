"""What servers have in common that register methods: one that has nothing else, and a task of a cluster."""

from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.service.rpc.method_service import MethodService


class RegistersMethods:
    """The base of a server with methods.

    Args:
      methods: The service that runs them.
    """

    def __init__(self, methods: MethodService) -> None:
        self._methods = methods

    def register(
        self,
        name: str,
        computation: object,
        inline: bool = False,
        *,
        parameter_types: ParameterTypes = None,
        result_type: object = None,
    ) -> None:
        """Registers a method, before or after the start. Clients that are there find it when they next look for it.

        Args:
          name: What clients call it. One that is no identifier is reached by `Client.call` only.
          computation: A computation, leaf or federated, or a Python function.
          inline: Whether it runs on the server's event loop, where everything else waits meanwhile: for functions of a
            few microseconds that wait for nothing. They answer sooner by a change of threads.
          parameter_types: For a Python function, its types: see `fedstack.python_computation`.
          result_type: For a Python function, what it returns; `()` for nothing. Left out, it is taken from the
            annotation or else from one call on zeros.

        Raises:
          InvalidValueError: If the name is taken, or one that clients have themselves.
          InvalidComputationError: If it is no computation, or types do not fit the function.
        """
        self._methods.register(name, computation, inline, parameter_types=parameter_types, result_type=result_type)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return self._methods.names
