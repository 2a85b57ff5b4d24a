"""Traces JAX functions over the types of the language, and writes them as carriers.

A function is exported twice: for one client, and for a group of clients, because an exported function cannot be
vectorized any more. The group defines what a client's result is. Its number of clients, the *lanes*, is chosen here and
sent with the function, so that all processes have the same results.
"""

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import cast

import attrs
import numpy as np

from fedstack.computations.leaves.declared_types import plain_containers, plain_type
from fedstack.computations.leaves.leaf import argument_converter, raise_leaf_error
from fedstack.computations.leaves.python_functions import bind
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.exported_program import why_not_exported
from fedstack.computations.leaves.xla.jax_api import FlatFunction, Traced
from fedstack.computations.leaves.xla.jax_sequences import (
    ROWS,
    ROWS_OF_ELEMENTS,
    JaxSequence,
    traced_leaves,
    traced_payload,
)
from fedstack.computations.leaves.xla.jax_trees import field_names, tree_maker
from fedstack.computations.types.language import (
    SequenceType,
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
    infer_type,
)
from fedstack.computations.types.type_structure import (
    contains_sequence,
    exact_bytes,
    fields_of,
    flatten,
    is_string,
    join_path,
    shape_fits,
    tensor_leaves,
)
from fedstack.computations.values.tensor_values import mismatch, normalize_tensor
from fedstack.computations.values.values import normalize
from fedstack.errors import FedstackError, InvalidComputationError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import users_lines
from fedstack.foundations.value_text import describe
from fedstack.proto import carriers_pb2

# A group computes this much at most, so that a client alone is not much slower, and its data fit into a cache.
_GROUP_OPERATIONS = 1 << 20
_GROUP_BYTES = 256 << 10
_MOST_LANES = 4096


@attrs.frozen(eq=False)
class JaxFunction:
    """A JAX function with its types.

    Attributes:
      name: The name of the function in messages.
      parameter: The parameter type; `None` if there is no parameter.
      result: The result type.
      flat: The function over the tensors of its parameter, which returns the tensors of its result.
      call: The function of a payload of arrays.
    """

    name: str
    parameter: Type | None
    result: Type
    flat: FlatFunction
    call: Callable[[object], object]

    def inside(self, argument: object) -> object:
        """Calls the function as a part of another JAX function.

        Raises:
          TypeMismatchError: If the argument or the result does not match its type.
          InvalidComputationError: If the parameter has sequences.
        """
        parameter = self.parameter
        if parameter is not None and contains_sequence(parameter):
            raise InvalidComputationError(
                f"Expected a call of {self.name!r} outside of other JAX functions, since it has a sequence as a "
                "parameter; move what both share into a function of arrays"
            )
        payload = None if parameter is None else normalize(argument, parameter, "arg", _read)
        result = normalize(self.call(payload), self.result, f"the result of {self.name!r}", _read)
        convert = argument_converter(self.result, tree_maker)
        return result if convert is None else convert(result)


def jax_function(
    function: Callable[..., object], name: str, parameter: Type | None, result: Type | None
) -> JaxFunction:
    """Traces a function and returns it with its types.

    Args:
      function: The function.
      name: The name of the function in messages.
      parameter: The parameter type; `None` if there is no parameter.
      result: The result type; `None` to infer it.

    Raises:
      InvalidComputationError: If a type has parts that JAX does not have, or the function cannot be traced.
      TypeMismatchError: If the function returns another type than `result`.
    """
    check_types(name, parameter, result)
    if result is not None and contains_sequence(result):
        raise InvalidComputationError(
            f"Expected tensors and structs of them as the result of the JAX function {name!r}, found {result}; return "
            "an array with a leading axis"
        )
    call = bind(function, parameter, tree_maker, JaxSequence)
    found: list[Type] = []

    def called(arguments: Sequence[Traced]) -> object:
        try:
            return call(None if parameter is None else traced_payload(iter(arguments), parameter))
        except BaseException as error:
            jax_api.without_frames(error)
            if (found := _explained(error, name)) is not None:
                raise InvalidComputationError(found) from error
            raise_leaf_error(error, name, None)

    def inferring(*arguments: Traced) -> Sequence[Traced]:
        found.append(_type_of(called(arguments), name))
        return []

    if result is None:
        _traced(inferring, parameter, name)
        result = found[-1]
        check_types(name, result, advice="return arrays of jax.numpy, or convert the result with astype")
    declared, place = result, f"the result of {name!r}"

    def flat(*arguments: Traced) -> Sequence[Traced]:
        return flatten(normalize(called(arguments), declared, place, _read), declared)

    _traced(flat, parameter, name)
    return JaxFunction(name, parameter, declared, flat, call)


def _traced(function: FlatFunction, parameter: Type | None, name: str) -> None:
    """Traces a function, to find its errors.

    Raises:
      InvalidComputationError: If JAX raises an error.
    """
    try:
        jax_api.results_of(function, _arguments(parameter))
    except (FedstackError, KeyboardInterrupt) as error:
        jax_api.without_frames(error)
        raise
    except Exception as error:  # such as that of a tracer that has left another function
        jax_api.without_frames(error)
        raise InvalidComputationError(
            f"Cannot trace the JAX function {name!r}: {type(error).__name__}: {text_of(error)}; return what the "
            "function computes, without side effects"
        ) from error


def _explained(error: BaseException, name: str) -> str | None:
    """Returns what an error of a traced function means, with advice; `None` if its text says so."""
    kind, lines, text = type(error).__name__, users_lines(error), str(error)
    if isinstance(error, jax_api.needs_values()):
        return (
            f"Expected {name!r} to compute with arrays whose values are not known yet, found {kind}: it needs a "
            "value; use jnp.where, jax.lax.cond and jax.lax.scan in place of if, while, int and float, or use "
            f"fedstack.python_computation{lines}"
        )
    if isinstance(error, Exception) and jax_api.needs_sizes(error):
        return (
            f"Expected {name!r} to compute with arrays whose numbers of rows are not known yet, found {kind}: it needs "
            "a number; use x.shape[0] in computations and -1 in shapes in place of len(x), and jax.lax.scan or "
            f"jax.lax.map in place of loops over rows, or declare the size{lines}"
        )
    if JaxSequence.__name__ in text:
        return (
            f"Expected {name!r} to pass arrays to other functions, found a sequence; use its length, "
            f"scan(step, state), or its elements, {ROWS_OF_ELEMENTS}{lines}"
        )
    if "Reverse-mode differentiation" in text:
        return (
            f"Expected {name!r} to differentiate loops of a known length only, found a loop over a sequence or another "
            "one of unknown length; differentiate inside of the step that scan calls, or loop over elements with "
            f"jax.lax.scan and mask those from length on{lines}"
        )
    return None


def check_types(name: str, *types: Type | None, advice: str = "declare a type with 32 bits") -> None:
    """Checks that JAX has values of these types.

    Args:
      name: The name of the function in messages.
      *types: The types.
      advice: What to do about a type with more bits.

    Raises:
      InvalidComputationError: If it has none, or computes with fewer bits.
    """
    for type_spec in types:
        if type_spec is None:
            continue
        for path, tensor, in_sequence in _tensors(type_spec):
            where = f" at {path.lstrip('.')}" if path else ""
            if is_string(tensor):
                raise InvalidComputationError(
                    f"Expected numbers in the types of the JAX function {name!r}, found strings{where}; use "
                    "fedstack.python_computation for strings"
                )
            if in_sequence and None in (tensor.shape or ()):
                raise InvalidComputationError(
                    f"Expected known sizes in the elements of sequences of the JAX function {name!r}, found {tensor}"
                    f"{where}; declare the size of a batch, and pass fedstack.batches(data, size, drop_remainder=True)"
                )
            if tensor.shape is None or None in tensor.shape[1:]:
                raise InvalidComputationError(
                    f"Expected known sizes in the types of the JAX function {name!r}, except of the first axis, found "
                    f"{tensor}{where}; declare the sizes"
                )
            if tensor.dtype.itemsize > (8 if tensor.dtype.kind == "c" else 4) and not jax_api.has_wide_types():
                raise InvalidComputationError(
                    f"Expected at most 32 bits in the types of the JAX function {name!r}, found {tensor}{where}: JAX "
                    'computes with 32 bits in this process; call jax.config.update("jax_enable_x64", True) first, or '
                    f"{advice}"
                )


def _tensors(type_spec: Type, path: str = "") -> Iterator[tuple[str, TensorType, bool]]:
    """Yields the path and the type of each tensor, and whether it is part of a sequence."""
    if isinstance(type_spec, SequenceType):
        yield from ((path + found, tensor, True) for found, tensor in tensor_leaves(type_spec.element, "[0]"))
    elif isinstance(type_spec, StructType):
        for index, (member, member_type) in enumerate(fields_of(type_spec)):
            yield from _tensors(member_type, join_path(path, member, index))
    else:
        yield path, cast(TensorType, type_spec), False


def _arguments(parameter: Type | None, rows: int | None = None) -> list[Traced]:
    """Returns descriptions of the arguments. All unknown sizes of a parameter are equal: the number of its rows.

    Args:
      parameter: The parameter type.
      rows: The number of rows; `None` for any number but 0.
    """
    if parameter is None:
        return []
    leaves = traced_leaves(parameter)
    names = list(dict.fromkeys(name for _, name in leaves if name and not (name == ROWS and rows is not None)))
    sizes: dict[str, object] = {ROWS: rows, **jax_api.symbols(names)}
    return [
        jax_api.shaped([sizes[name] if size is None else size for size in tensor.shape or ()], tensor.dtype)
        for tensor, name in leaves
    ]


def _read(value: object, tensor: TensorType, path: str) -> object:
    """Returns a tensor as an array of JAX of the declared type."""
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
        value = normalize_tensor(cast(object, value), tensor, path)  # JAX would narrow it
    if value is None:
        mismatch(tensor, describe(value), path, "add a return statement")
    try:
        found = jax_api.array(value)
    except (TypeError, ValueError):
        mismatch(tensor, describe(value), path, "return an array of JAX")
    shape = tuple(size if isinstance(size, int) else None for size in found.shape)
    if found.dtype != tensor.dtype or not _fits(shape, tensor):
        advice = f"{'reshape it' if found.dtype == tensor.dtype else 'convert it with astype'}, or declare another type"
        sizes = ",".join("?" if size is None else str(size) for size in shape)
        mismatch(tensor, f"{found.dtype}[{sizes}]" if shape else str(found.dtype), path, advice)
    return found


def _fits(shape: tuple[int | None, ...], tensor: TensorType) -> bool:
    """Returns whether a shape fits a type. An unknown size fits an unknown size only."""
    return shape_fits(tuple(-1 if size is None else size for size in shape), tensor.shape)


def _type_of(value: object, name: str) -> Type:
    """Returns the type of the result of a traced function."""

    def leaf(one: object) -> object:
        if one is None or isinstance(one, (bool, int, float, str, bytes)):
            return one
        if names := field_names(type(one)):
            members = [(field, _type_of(getattr(one, field), name)) for field in names]
            return StructWithPythonType(members, type(one))
        if isinstance(one, (np.generic, np.ndarray)):
            return infer_type(cast(object, one))  # JAX would narrow it
        found = jax_api.array(one)
        sizes = tuple(size if isinstance(size, int) else None for size in found.shape)
        return TensorType(np.dtype(found.dtype).type, sizes)

    if value is None:
        raise InvalidComputationError(f"The JAX function {name!r} returned None; add a return statement")
    if isinstance(value, Generator):
        raise InvalidComputationError(
            f"Expected a function that returns its result, found {name!r}, which yields; write return in place of yield"
        )
    try:
        return plain_type(_typed(plain_containers(value, leaf)), name)
    except (FedstackError, TypeError, ValueError, NotImplementedError) as error:
        advice = "return arrays, and dictionaries, tuples and lists of arrays, or declare the type with result_type"
        if "key<" in str(error):
            advice = "return the data of a random key, jax.random.key_data(key)"
        raise InvalidComputationError(
            f"Cannot infer the result type of the JAX function {name!r}: {error}; {advice}"
        ) from error


def _typed(value: object) -> object:
    """Returns containers of types, given containers of types and of Python's own numbers."""
    return plain_containers(value, lambda one: one if isinstance(one, Type) else infer_type(one))


def exported(function: JaxFunction) -> carriers_pb2.JaxExport:
    """Exports a function for one client and for a group of clients.

    Raises:
      InvalidComputationError: If the function has operations that cannot be exported.
    """
    try:
        return _carrier(function)
    except InvalidComputationError as error:
        reason = why_not_exported(function.flat, _arguments(function.parameter), function.name)
        if reason is None:
            raise
        raise InvalidComputationError(reason) from error.__cause__


def _carrier(function: JaxFunction) -> carriers_pb2.JaxExport:
    alone = jax_api.exported(function.flat, _arguments(function.parameter), function.name)
    carrier = carriers_pb2.JaxExport(
        exported=alone,
        digest=hashlib.sha256(alone).digest(),
        version=jax_api.version(),
        name=function.name,
        lanes=lanes_of(function),
        fingerprint=jax_api.fingerprint(),
    )
    if function.parameter is not None and any(name == ROWS for _, name in traced_leaves(function.parameter)):
        # Symbols stand for sizes of at least 1. Some functions, such as the maximum, need a row.
        with contextlib.suppress(Exception):
            carrier.empty = jax_api.exported(function.flat, _arguments(function.parameter, 0), function.name)
            carrier.empty_digest = hashlib.sha256(carrier.empty).digest()
    if carrier.lanes > 1:
        leaves = [tensor for _, tensor in tensor_leaves(cast(Type, function.parameter))]
        arguments = [jax_api.shaped([carrier.lanes, *(leaf.shape or ())], leaf.dtype) for leaf in leaves]
        carrier.group = jax_api.exported(jax_api.mapped(function.flat), arguments, function.name)
        carrier.group_digest = hashlib.sha256(carrier.group).digest()
    return carrier


def lanes_of(function: JaxFunction) -> int:
    """Returns how many clients a group of a function has, a power of two that follows from its cost alone.

    Cheap functions are vectorized. A function that computes much for a client is not, because XLA multiplies several
    matrices of several clients more slowly than one after the other.
    """
    parameter = function.parameter
    given, returned = (None if t is None else exact_bytes(t) for t in (parameter, function.result))
    if parameter is None or not given or returned is None:
        return 1
    operations, accessed = jax_api.cost_of(function.flat, _arguments(parameter))
    size = max(1.0, given + returned, accessed)
    most = min(_GROUP_BYTES // size, _GROUP_OPERATIONS // max(1.0, operations), _MOST_LANES)
    return 1 << max(1, int(most)).bit_length() - 1
