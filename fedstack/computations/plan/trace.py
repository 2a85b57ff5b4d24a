"""Normalises a computation by running it on symbols: lambdas, blocks, references and their calls disappear.

The result is a `Function`: a flat list of leaf calls and intrinsic calls. Functions that were captured, curried,
shadowed or passed around have been applied to their arguments. The nodes of unused locals are not needed by any other,
so they never run.
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
    """The names in force at a place in a computation, innermost first."""

    __slots__ = ("bindings", "outer")

    def __init__(self, outer: "Environment | None") -> None:
        self.outer = outer
        self.bindings: dict[str, Symbol] = {}

    def find(self, name: str) -> Symbol:
        """Returns what the name is bound to.

        Raises:
          InvalidComputationError: If it is not bound.
        """
        scope: Environment | None = self
        while scope is not None:
            if name in scope.bindings:
                return scope.bindings[name]
            scope = scope.outer
        raise InvalidComputationError(
            f"Expected every reference to be bound, found {name_text(name)!r} unbound; bind it in a block or a lambda"
        )


class Tracer:
    """Evaluates computations on symbols. One tracer serves one computation and counts its steps."""

    def __init__(self, max_steps: int | None = None) -> None:
        self._max_steps = current_scope().max_steps if max_steps is None else max_steps
        self._steps_left = self._max_steps

    def evaluate(self, computation: computation_pb2.Computation, environment: Environment, scope: Scope) -> Symbol:
        """Returns the symbol for what `computation` yields; new nodes go into `scope`."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise ResourceLimitError(
                f"Expected a computation of at most {self._max_steps} steps once its calls are unfolded, found more; "
                "call fewer nested functions, or map a function instead of repeating it"
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
            if pack.size > MAX_MEMBERS:  # few steps can make a huge struct, doubling it each time
                raise ResourceLimitError(
                    f"Expected structs of at most {MAX_MEMBERS} members, found one of {pack.size}; use arrays"
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
                        f"Expected a leaf computation without federated parts, found {declared}"
                    )
                return Callee(computation)
            if kind == "data":
                return DataNode(declared, scope, computation)
        raise InvalidComputationError(
            f"Expected a computation that can be executed, found a {kind or 'computation of no kind'}"
        )

    def _literal(self, computation: computation_pb2.Computation, scope: Scope) -> Symbol:
        declared = declared_type(computation)
        payload = array_from_proto(computation.literal.value)
        constant = normalize(payload, declared, "the literal")
        if isinstance(constant, np.ndarray):
            # Of its own memory, since the plan keeps it.
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
                environment = Environment(environment)  # closures made before must go on seeing the earlier binding
            environment.bindings[local.name] = value
        return self.evaluate(block.result, environment, scope)

    def apply(self, function: Symbol, argument: Symbol | None, scope: Scope) -> Symbol:
        """Returns the symbol for a call; new nodes go into `scope`.

        Raises:
          InvalidComputationError: If the called symbol is not a known function.
          TypeMismatchError: If the argument does not fit.
        """
        if not isinstance(function, Callee):
            shown = type_of(function)
            if isinstance(shown, FunctionType):
                raise InvalidComputationError(
                    "Expected a known function, found one that is an argument; pass the computation itself"
                )
            raise InvalidComputationError(f"Expected a function to call, found a value of type {shown}")
        computation = function.computation
        declared = function.type
        if not isinstance(declared, FunctionType):
            raise InvalidComputationError(f"Expected a functional type for what is called, found {declared}")
        if (declared.parameter is None) != (argument is None):
            found = "none" if argument is None else f"one of type {type_of(argument)}"
            raise TypeMismatchError(f"Expected an argument of type {declared.parameter}, found {found}")
        kind = computation.WhichOneof("computation")
        if argument is not None and declared.parameter is not None:
            check_fits(argument, declared.parameter, "arg")
        if kind == "lambda":
            environment = Environment(cast("Environment | None", function.environment))
            if argument is not None:
                environment.bindings[getattr(computation, "lambda").parameter_name] = argument
            result = self.evaluate(getattr(computation, "lambda").result, environment, scope)
            check_fits(result, declared.result, "result")  # callers rely on what it declares
            return _widened(result, declared.result, scope)
        if kind == "intrinsic":
            return self._apply_intrinsic(find_intrinsic(computation.intrinsic.uri), declared, argument, scope)
        return LeafCall(declared.result, scope, computation, argument)

    def close(self, function: Symbol, parameter: Type | None) -> Function:
        """Traces a function over a fresh parameter, in a scope of its own."""
        scope = Scope()
        node = Parameter(parameter, scope) if parameter is not None else None
        return Function(scope, node, self.apply(function, node, scope))

    def _apply_intrinsic(
        self, intrinsic: Intrinsic, declared: FunctionType, argument: Symbol | None, scope: Scope
    ) -> Symbol:
        declared = checked_type(intrinsic, declared)
        if argument is None or declared.parameter is None:
            raise TypeMismatchError(f"Expected an argument for {intrinsic.uri}, found none")
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
        """Turns an operator between federated values into a map of the operator over their zip."""
        federated = next(iter(types))
        if not isinstance(federated, FederatedType) or not isinstance(result, FederatedType):
            raise TypeMismatchError(f"Expected federated arguments and result for {intrinsic.uri}, found {result}")
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
        raise InvalidComputationError(f"Expected a functional type for a function, found {callee.type}")
    return callee


def _widened(value: Symbol, declared: Type, scope: Scope) -> Symbol:
    """Returns a symbol with a value per client if the declared type has that, but the symbol's value is all-equal."""
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
    """Normalises a computation that has a functional type.

    A computation of any other type becomes a function without parameter.

    Raises:
      InvalidComputationError: If it is malformed, takes a function or returns one.
      ResourceLimitError: If it is nested too deeply or unfolds to too many steps.
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
            "Expected a computation whose functions call each other less deeply, found one beyond Python's recursion "
            "limit; split it into several computations"
        ) from None
    return function
