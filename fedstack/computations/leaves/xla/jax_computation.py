"""Defines the decorator that turns a JAX function into a leaf computation."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.computation_pickles import reduce_computation
from fedstack.computations.leaves.declared_types import parameter_type, plain_containers, plain_type
from fedstack.computations.leaves.function_pickles import Reduced
from fedstack.computations.leaves.python_computation import LeafComputation
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.jax_functions import JaxFunction, exported, jax_function
from fedstack.computations.types.language import (
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import fields_of, struct_of
from fedstack.errors import InvalidComputationError, ResourceLimitError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Binding = computation_pb2.Xla.Binding


class JaxComputation(LeafComputation[_P, _R]):
    """A leaf computation that runs a compiled JAX function in any fedstack executor.

    In other JAX functions it is a JAX function, which JAX can also differentiate and vectorize.
    """

    def __init__(self, function: Callable[_P, _R], traced: JaxFunction) -> None:
        signature = FunctionType(traced.parameter, traced.result)
        message = computation_pb2.Computation(type=signature.to_proto())
        message.xla.hlo_module.Pack(exported(traced))
        if traced.parameter is not None:
            message.xla.parameter.CopyFrom(_binding(traced.parameter))
        message.xla.result.CopyFrom(_binding(traced.result))
        super().__init__(function, traced.name, message, signature)
        self._traced = traced

    def _is_part_of_another(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        return jax_api.is_tracing((args, kwargs))

    def _run_as_part(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        parameter = self._traced.parameter
        if parameter is None:
            return self._traced.inside(None)
        fields = [name for name, _ in fields_of(parameter)] if isinstance(parameter, StructType) else []
        if kwargs and set(kwargs) <= set(fields) and not args:
            return self._traced.inside(dict(kwargs))
        if kwargs:
            args = self.by_position(args, kwargs)
        return self._traced.inside(args[0] if len(args) == 1 else list(args))

    def __reduce__(self) -> Reduced:
        return reduce_computation(self)

    def __repr__(self) -> str:
        return f"<jax_computation {self._name} {self.type_signature}>"


def jax_computation(
    *parameter_types: object, result_type: object = None
) -> Callable[[Callable[_P, _R]], JaxComputation[_P, _R]]:
    """Returns a decorator that turns a JAX function into a leaf computation, which XLA compiles.

    The function is traced when it is decorated, and exported. Workers need JAX, but none of the user's code. The
    function receives tracers of JAX; as in `python_computation`, the fields of a struct are accessible by attribute and
    by key, and structs are trees of JAX. The function is traced a few times. It must have no side effects, and must not
    depend on what changes, such as NumPy's random numbers; pass random keys as arguments.

    Cheap functions are vectorized: a group of clients is one call of the compiled function. The number of clients in a
    group follows from the cost of the function alone, so that each client's result has the same bits on any number of
    threads and workers with the same version of JAX and the same kind of processor.

    Args:
      *parameter_types: One type per parameter of the function, or a list of them, or a mapping from the names of all
        parameters to types. Types consist of tensors of numbers; what `jax.eval_shape` returns is a type, too. Only the
        first axis of a tensor may have an unknown size, and all unknown sizes are equal: the number of rows of the
        client. The function is compiled once for each number of rows. It receives a sequence, whose elements must have
        known sizes, as a `JaxSequence`: `batches.scan(step, state)` is a compiled loop over the elements,
        `batches.elements` has them as stacked arrays, padded with rows of zeros, and `batches.length` is their number.
        The function is compiled once for each power of two of elements.
      result_type: The type of the function's result; by default it is inferred.

    Returns:
      The decorator.

    Raises:
      ImportError: If JAX is not installed (extra `jax`), or the installed version returns wrong results.
      InvalidComputationError: If a type is not supported, the number of types differs from the number of parameters,
        or the function cannot be traced or exported.
      LeafError: If the function raises an error while it is traced.
      TypeMismatchError: If the function returns another type than `result_type`.
      ResourceLimitError: If structs in a type are nested more deeply than a protobuf message allows.
    """
    if len(parameter_types) == 1 and callable(parameter_types[0]) and not isinstance(parameter_types[0], type):
        raise InvalidComputationError(
            f"Expected parameter types, found the function {getattr(parameter_types[0], '__name__', '')!r}; write "
            "@fedstack.jax_computation(np.float32), with one type per parameter"
        )
    jax_api.jax()

    def decorate(function: Callable[_P, _R]) -> JaxComputation[_P, _R]:
        name = getattr(function, "__name__", type(function).__name__)
        types: object = list(parameter_types)
        if len(parameter_types) == 1 and isinstance(parameter_types[0], (list, Mapping)):
            # One type is not enough for several parameters, so these are their types, as in `python_computation`.
            given = cast("list[object] | Mapping[object, object]", parameter_types[0])
            parameters = inspect.signature(function).parameters
            if len(parameters) > 1 or (isinstance(given, Mapping) and set(given) == set(parameters)):
                types = given
        try:
            parameter = parameter_type(_of_numpy(types), function, name)
            result = None if result_type is None else plain_type(_of_numpy(result_type), name)
            return JaxComputation(function, jax_function(function, name, parameter, result))
        except (DecodeError, RecursionError) as error:
            raise ResourceLimitError(
                f"Expected types for {name!r} with at most about 30 nested structs, found more "
                f"({type(error).__name__}): protobuf allows 100 levels; move deeply nested members to an outer struct"
            ) from error

    return decorate


def _of_numpy(spec: object) -> object:
    """Returns a type specification without the types of JAX, such as `jnp.float32` and `jax.ShapeDtypeStruct`."""
    return plain_containers(spec, _type_of_numpy)


def _type_of_numpy(spec: object) -> object:
    dtype = getattr(spec, "dtype", None)
    if isinstance(spec, type):
        return cast("np.dtype[Any]", dtype).type if isinstance(dtype, np.dtype) else spec
    if jax_api.is_description(spec):
        shape = [size if isinstance(size, int) else None for size in cast(Any, spec).shape]
        try:
            return TensorType(np.dtype(cast(Any, dtype)).type, shape)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise InvalidComputationError(
                f"Expected arrays of the language's number types in the types of a JAX function, found {spec}; pass a "
                "random key as jax.random.key_data(key), and other numbers as a type that NumPy has"
            ) from error
    return spec


def _binding(type_spec: Type, indices: "Iterator[int] | None" = None) -> _Binding:
    """Returns which tensors of an XLA program belong to a value of a type: all of them, in order.

    A sequence is a struct of the tensors of its stacked elements, and of their number.
    """
    indices = itertools.count() if indices is None else indices
    if isinstance(type_spec, SequenceType):
        type_spec = struct_of([(None, type_spec.element), (None, TensorType(np.int32))])
    if isinstance(type_spec, StructType):
        members = [_binding(member, indices) for _, member in fields_of(type_spec)]
        return _Binding(struct=computation_pb2.Xla.StructBinding(element=members))
    return _Binding(tensor=computation_pb2.Xla.TensorBinding(index=next(indices)))
