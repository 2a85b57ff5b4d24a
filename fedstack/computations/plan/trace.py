"""Normalizes a computation by running it on symbols, which eliminates blocks, references, lambdas and calls of lambdas.

The result is a `Function`, a flat list of leaf calls and intrinsic calls. Functions that were captured, curried,
shadowed or passed as arguments have been applied to their arguments. Nodes of unused locals are dropped, because no
other node needs them.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import array_from_proto
from fedstack.computations.leaves.portability import used_locals
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.graph import (
    Callee,
    Constant,
    DataNode,
    Function,
    IntrinsicCall,
    LeafCall,
    Node,
    Pack,
    Parameter,
    Scope,
    Symbol,
    declared_type,
    members_of,
    select,
    type_of,
)
from fedstack.computations.plan.intrinsics import (
    GENERIC_ZERO,
    Intrinsic,
    argument_types,
    checked_type,
    find_intrinsic,
)
from fedstack.computations.plan.symbol_checks import (
    check_fits,
    check_plain,
    check_result,
    check_takes_values,
    checked_index,
)
from fedstack.computations.types.language import (
    CLIENTS,
    FederatedType,
    FunctionType,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import (
    contains_federated,
    fields_of,
    is_client_valued,
    zeros,
)
from fedstack.computations.values.values import normalize
from fedstack.errors import InvalidComputationError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.error_text import name_text

MAX_MEMBERS = 50_000


class Environment:
    """The bindings that are visible at one point in a computation, with a reference to the enclosing bindings."""

    __slots__ = ("bindings", "outer")

    def __init__(self, outer: "Environment | None") -> None:
        self.outer = outer
        self.bindings: dict[str, Symbol] = {}

    def find(self, name: str) -> Symbol:
        """Returns the symbol to which a name is bound.

        Raises:
          InvalidComputationError: If the name is not bound.
        """
        scope: Environment | None = self
        while scope is not None:
            if name in scope.bindings:
                return scope.bindings[name]
            scope = scope.outer
        raise InvalidComputationError(
            f"Expected every reference to be bound, found the unbound name {name_text(name)!r}; bind it in a block or "
            "a lambda"
        )


class Tracer:
    """Evaluates one computation on symbols, and limits the number of steps."""

    def __init__(self, max_steps: int | None = None) -> None:
        self._max_steps = current_scope().max_steps if max_steps is None else max_steps
        self._steps_left = self._max_steps

    def evaluate(self, computation: computation_pb2.Computation, environment: Environment, scope: Scope) -> Symbol:
        """Returns the symbol for the value of `computation`, and adds new nodes to `scope`."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise ResourceLimitError(
                f"Expected a computation of at most {self._max_steps} steps after its calls are unfolded, found more "
                "steps; call fewer nested functions, or map a function instead of repeating its call"
            )
        kind = computation.WhichOneof("computation")
        if kind == "reference":
            return environment.find(computation.reference.name)
        if kind == "call":
            call = computation.call
            function = self.evaluate(call.function, environment, scope)
            argument = self.evaluate(call.argument, environment, scope) if call.HasField("argument") else None
            return self.apply(function, argument, scope)
        if kind == "block":
            return self._block(computation.block, environment, scope)
        if kind == "struct":
            elements = computation.struct.element
            names = tuple(element.name or None for element in elements)
            pack = Pack(names, tuple(self.evaluate(element.value, environment, scope) for element in elements))
            if pack.size > MAX_MEMBERS:  # a few steps, each doubling the size, can create a huge struct
                raise ResourceLimitError(
                    f"Expected structs of at most {MAX_MEMBERS} members, found a struct of {pack.size} members; use "
                    "arrays instead"
                )
            return pack
        if kind == "selection":
            source = self.evaluate(computation.selection.source, environment, scope)
            return select(source, checked_index(source, computation.selection.index))
        if kind == "lambda":
            return _function(Callee(computation, environment))
        if kind == "literal":
            return self._literal(computation, scope)
        return self._atom(computation, kind, scope)

    def _atom(self, computation: computation_pb2.Computation, kind: str | None, scope: Scope) -> Symbol:
        if kind == "intrinsic":
            if computation.intrinsic.uri == GENERIC_ZERO:
                return self._generic_zero(declared_type(computation), scope)
            find_intrinsic(computation.intrinsic.uri)
            return _function(Callee(computation))
        if kind in ("data", "xla", "tensorflow"):
            declared = declared_type(computation)
            if isinstance(declared, FunctionType):
                if contains_federated(declared):
                    raise InvalidComputationError(
                        f"Expected a leaf computation without federated types, found the type {declared}; use "
                        "federated types only in federated computations"
                    )
                return Callee(computation)
            if kind == "data":
                return DataNode(declared, scope, computation)
        raise InvalidComputationError(
            f"Expected an executable computation, found a {kind or 'computation of unknown kind'}"
        )

    def _literal(self, computation: computation_pb2.Computation, scope: Scope) -> Symbol:
        declared = declared_type(computation)
        payload = array_from_proto(computation.literal.value)
        constant = normalize(payload, declared, "the literal")
        if isinstance(constant, np.ndarray):
            # The plan keeps the constant, so the array must not be a view of the message.
            owned = cast("NDArray[Any]", constant).copy()
            owned.flags.writeable = False
            return Constant(declared, scope, owned)
        return Constant(declared, scope, constant)

    def _generic_zero(self, type_spec: Type, scope: Scope) -> Symbol:
        if isinstance(type_spec, FederatedType):
            member = Constant(type_spec.member, scope, zeros(type_spec.member))
            at = "clients" if type_spec.placement is CLIENTS else "server"
            return IntrinsicCall(type_spec, scope, f"federated_value_at_{at}", (), (member,))
        return Constant(type_spec, scope, zeros(type_spec))

    def _block(self, block: computation_pb2.Block, outer: Environment, scope: Scope) -> Symbol:
        environment = Environment(outer)
        for local in used_locals(block):
            value = self.evaluate(local.value, environment, scope)
            if local.name in environment.bindings:
                environment = Environment(environment)  # earlier closures must keep the earlier binding
            environment.bindings[local.name] = value
        return self.evaluate(block.result, environment, scope)

    def apply(self, function: Symbol, argument: Symbol | None, scope: Scope) -> Symbol:
        """Returns the symbol for the result of a call, and adds new nodes to `scope`.

        Raises:
          InvalidComputationError: If the called symbol is not a known function.
          TypeMismatchError: If the argument does not match the parameter's type.
        """
        if not isinstance(function, Callee):
            shown = type_of(function)
            if isinstance(shown, FunctionType):
                raise InvalidComputationError(
                    "Expected a known function, found a function that is known only by its type; pass the "
                    "computation itself"
                )
            raise InvalidComputationError(
                f"Expected a function to call, found a value of type {shown}; call only functions"
            )
        computation = function.computation
        declared = function.type
        if not isinstance(declared, FunctionType):
            raise InvalidComputationError(
                f"Expected the called computation to have a functional type, found {declared}"
            )
        if (declared.parameter is None) != (argument is None):
            found = "no argument" if argument is None else f"an argument of type {type_of(argument)}"
            raise TypeMismatchError(
                f"Expected an argument of type {declared.parameter}, found {found}; match the declared type"
            )
        kind = computation.WhichOneof("computation")
        if argument is not None and declared.parameter is not None:
            check_fits(argument, declared.parameter, "arg")
        if kind == "lambda":
            environment = Environment(cast("Environment | None", function.environment))
            if argument is not None:
                environment.bindings[getattr(computation, "lambda").parameter_name] = argument
            result = self.evaluate(getattr(computation, "lambda").result, environment, scope)
            check_fits(result, declared.result, "result")  # callers rely on the declared type
            return _widened(result, declared.result, scope)
        if kind == "intrinsic":
            return self._apply_intrinsic(find_intrinsic(computation.intrinsic.uri), declared, argument, scope)
        return LeafCall(declared.result, scope, computation, argument)

    def close(self, function: Symbol, parameter: Type | None) -> Function:
        """Traces a function on a new parameter node, in a new scope."""
        scope = Scope()
        node = Parameter(parameter, scope) if parameter is not None else None
        return Function(scope, node, self.apply(function, node, scope))

    def _apply_intrinsic(
        self, intrinsic: Intrinsic, declared: FunctionType, argument: Symbol | None, scope: Scope
    ) -> Symbol:
        declared = checked_type(intrinsic, declared)
        if argument is None or declared.parameter is None:
            raise TypeMismatchError(
                f"Expected an argument for {intrinsic.uri}, found a call without arguments; pass the argument"
            )
        types = argument_types(intrinsic, declared.parameter)
        arguments = [argument] if intrinsic.arity == 1 else members_of(argument, intrinsic.arity)
        if intrinsic.uri.startswith("generic_") and isinstance(types[0], FederatedType):
            return self._generic_over_federated(intrinsic, types, declared.result, argument, scope)
        functions = tuple(self.close(arguments[i], cast(FunctionType, types[i]).parameter) for i in intrinsic.functions)
        rest = tuple(value for i, value in enumerate(arguments) if i not in intrinsic.functions)
        for value in rest:
            check_plain(value, intrinsic.uri)
        declared_types = tuple(t for i, t in enumerate(types) if i not in intrinsic.functions)
        return IntrinsicCall(declared.result, scope, intrinsic.uri, functions, rest, declared_types)

    def _generic_over_federated(
        self, intrinsic: Intrinsic, types: Iterable[Type], result: Type, argument: Symbol, scope: Scope
    ) -> Symbol:
        """Converts a generic operator on two federated values to a map of the operator over the zipped values."""
        federated = next(iter(types))
        if not isinstance(federated, FederatedType) or not isinstance(result, FederatedType):
            raise TypeMismatchError(
                f"Expected federated arguments and a federated result for {intrinsic.uri}, found {result}"
            )
        pair = StructType([federated.member, federated.member])
        zipped_type = FederatedType(pair, federated.placement, federated.all_equal)
        zip_uri, uri = "federated_zip_at_server", "federated_apply"
        if federated.placement is CLIENTS:
            zip_uri = "federated_zip_at_clients"
            uri = "federated_map_all_equal" if federated.all_equal else "federated_map"
        zipped = IntrinsicCall(zipped_type, scope, zip_uri, (), (argument,))
        body = Scope()
        parameter = Parameter(pair, body)
        inner = IntrinsicCall(result.member, body, intrinsic.uri, (), tuple(members_of(parameter, 2)))
        return IntrinsicCall(result, scope, uri, (Function(body, parameter, inner),), (zipped,))


def _function(callee: Callee) -> Callee:
    if not isinstance(callee.type, FunctionType):
        raise InvalidComputationError(
            f"Expected a lambda or an intrinsic to have a functional type, found {callee.type}"
        )
    return callee


def _widened(value: Symbol, declared: Type, scope: Scope) -> Symbol:
    """Converts an all-equal value to one value per client where the declared type requires it."""
    if isinstance(value, Node) and value.type is declared:
        return value
    if isinstance(value, Node) and is_client_valued(declared) and not is_client_valued(value.type):
        return IntrinsicCall(declared, scope, "federated_zip_at_clients", (), (value,))
    if isinstance(value, Callee) or not isinstance(declared, StructType) or not contains_federated(declared):
        return value
    fields = fields_of(declared)
    members = members_of(value, len(fields))
    widened = tuple(_widened(member, t, scope) for member, (_, t) in zip(members, fields))
    if all(new is old for new, old in zip(widened, members)):
        return value
    return Pack(tuple(name for name, _ in fields), widened)


def trace(computation: computation_pb2.Computation) -> Function:
    """Normalizes a computation.

    A computation whose type is not functional becomes a function without a parameter.

    Raises:
      InvalidComputationError: If the computation is malformed, or a function occurs in its parameter or its result.
      TypeMismatchError: If the types in the computation contradict each other.
      ResourceLimitError: If the computation is nested too deeply, or unfolds to too many steps.
    """
    tracer = Tracer()
    scope = Scope()
    try:
        symbol = tracer.evaluate(computation, Environment(None), scope)
        if isinstance(symbol, Callee) and isinstance(symbol.type, FunctionType):
            signature = symbol.type
            check_fits(symbol, declared_type(computation), "the computation")
            check_takes_values(signature)
            function = tracer.close(symbol, signature.parameter)
            declared = signature.result
        else:
            declared = declared_type(computation)
            check_result(symbol, declared)
            function = Function(scope, None, _widened(symbol, declared, scope))
        check_result(function.result, declared)
    except RecursionError:
        raise ResourceLimitError(
            "The calls in the computation are nested more deeply than Python's recursion limit allows; "
            "split the computation into several computations"
        ) from None
    return function
