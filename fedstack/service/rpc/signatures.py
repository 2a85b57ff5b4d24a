"""The signatures of methods. Client and server perform the same checks on a call, with the same error messages."""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import cast

import attrs
import numpy as np

from fedstack.computations.types.language import ConcreteComputation, FunctionType, StructType, Type, to_type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, is_nothing, type_from_proto
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError, InvalidComputationError, TypeMismatchError
from fedstack.foundations.error_text import name_text, printable, with_place
from fedstack.foundations.value_text import describe
from fedstack.proto.methods_pb2 import MethodDescription

# The result of a method that returns nothing.
NOTHING = StructType([])
_NO_STRUCTS = (int, float, complex, str, bytes, np.generic, np.ndarray)


def _parameter_types(signature: "Signature") -> Sequence[tuple[str, Type]]:
    whole = signature.function.parameter
    if len(signature.parameters) > 1:
        return [(name, member) for name, (_, member) in zip(signature.parameters, fields_of(cast(StructType, whole)))]
    return [(name, cast(Type, whole)) for name in signature.parameters]


@attrs.frozen(eq=False)
class Signature:
    """The parameters and the result of a method.

    Attributes:
      name: The name of the method.
      function: The type of the method.
      parameters: The names of the parameters: either a single name for the whole parameter, or one name for each member
        of the parameter's struct type.
      doc: The docstring of the registered computation.
      digest: A hash of the type and the parameter names, which identifies the signature on the wire.
      parameter_types: The names and types of the parameters.
    """

    name: str
    function: FunctionType
    parameters: tuple[str, ...]
    doc: str = ""
    digest: bytes = b""

    parameter_types: Sequence[tuple[str, Type]] = attrs.field(
        init=False, default=attrs.Factory(_parameter_types, takes_self=True)
    )

    @property
    def of_python(self) -> inspect.Signature:
        """The signature as an `inspect.Signature`."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind, annotation=t) for name, t in self.parameter_types]
        result = None if is_nothing(self.function.result) else self.function.result
        return inspect.Signature(parameters, return_annotation=result)

    def payload(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Returns the payload for the arguments of a call; `None` for a method without parameters.

        Raises:
          TypeMismatchError: If the arguments do not match the parameters.
          InvalidValueError: If the arguments have the right types but cannot be sent.
        """
        whole = self.function.parameter
        try:
            if len(args) == 1 and not kwargs and len(self.parameters) > 1 and not isinstance(args[0], _NO_STRUCTS):
                return normalize_argument(args[0], cast(Type, whole), "arguments")
            bound = self._bound(args, kwargs)
            payloads = [normalize_argument(value, t, name) for value, (name, t) in zip(bound, self.parameter_types)]
        except FedstackError as error:
            raise with_place(error, f"in a call of {name_text(self.name)!r}") from error.__cause__
        if len(payloads) > 1:
            return tuple(payloads)
        return payloads[0] if payloads else None

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[object]:
        if not kwargs and len(args) == len(self.parameters):
            return args
        names = self.parameters[len(args) :]
        if len(args) <= len(self.parameters) and set(names) == set(kwargs):
            return [*args, *(kwargs[name] for name in names)]
        named = f" and {', '.join(map(name_text, kwargs))} by name" if kwargs else ""
        raise TypeMismatchError(
            f"Expected {len(self.parameters) or 'no'} argument{'s' * (len(self.parameters) != 1)} "
            f"{self.shown_parameters}, found {len(args)} by position{named}; pass each argument exactly once"
        )

    @property
    def shown_parameters(self) -> str:
        """The parameters as text."""
        return f"({', '.join(f'{printable(name)}: {type_text(t)}' for name, t in self.parameter_types)})"

    def check_specs(self, output_specs: object) -> None:
        """Checks the result type that a caller expects.

        Raises:
          TypeMismatchError: If `output_specs` is not a type, or differs from the method's result type.
        """
        result = self.function.result
        try:
            found = to_type(output_specs)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise TypeMismatchError(
                f"Expected a type as output_specs, found {describe(output_specs)}; omit output_specs, or pass "
                f"{type_text(result)} for {name_text(self.name)!r}"
            ) from error
        if not result.is_equivalent_to(found):
            raise TypeMismatchError(
                f"Expected {type_text(result)} as output_specs, found {type_text(found)}; pass the result type of "
                f"{name_text(self.name)!r}, or omit output_specs"
            )

    def described(self) -> MethodDescription:
        """Returns the description with which the server announces the method to clients."""
        return MethodDescription(
            name=self.name,
            type=self.function.to_proto(),
            parameter=self.parameters,
            doc=self.doc,
            signature=self.digest,
        )

    def __str__(self) -> str:
        return f"{printable(self.name)}{self.shown_parameters} -> {type_text(self.function.result)}"


def signature_of(name: str, computation: ConcreteComputation) -> Signature:
    """Returns the signature of a computation that is registered under a name."""
    function = FunctionType(computation.type_signature.parameter, computation.type_signature.result)
    names = _parameters_of(computation)
    content = [function.to_proto().SerializeToString(deterministic=True), *map(str.encode, names)]
    return Signature(
        name, function, names, inspect.getdoc(computation) or "", hashlib.sha256(b"\0".join(content)).digest()
    )


def read_signature(description: MethodDescription) -> Signature:
    """Returns the signature in a description that a server has sent.

    Raises:
      InvalidComputationError: If the description contains no valid signature.
    """
    function = type_from_proto(description.type)
    names = tuple(description.parameter)
    if not isinstance(function, FunctionType) or not _fits(function.parameter, names):
        raise InvalidComputationError(
            f"Expected a function type and the names of its parameters for {name_text(description.name)!r}, found "
            f"{type_text(function)} and {len(names)} names; check that client and server use the same release"
        )
    return Signature(description.name, function, names, printable(description.doc), description.signature)


def _parameters_of(computation: ConcreteComputation) -> tuple[str, ...]:
    parameter = computation.type_signature.parameter
    if hasattr(computation, "__wrapped__"):
        names = tuple(inspect.signature(computation).parameters)
        if _fits(parameter, names):
            return names
    if parameter is None:
        return ()
    if not isinstance(parameter, StructType) or len(fields_of(parameter)) < 2:
        return ("arg",)
    return tuple(name or f"arg{index}" for index, (name, _) in enumerate(fields_of(parameter)))


def _fits(parameter: Type | None, names: Sequence[str]) -> bool:
    """Returns whether parameters with the given names can represent a parameter type."""
    if len(names) < 2 or len(set(names)) < len(names):
        return len(names) == (parameter is not None)
    return isinstance(parameter, StructType) and len(fields_of(parameter)) == len(names)
