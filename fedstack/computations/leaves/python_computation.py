"""Defines the decorator that turns a Python function into a leaf computation."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, ParamSpec, TypeVar, cast, overload

import numpy as np
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.computation_pickles import WrittenFunction, write_function
from fedstack.computations.leaves.declared_types import ParameterTypes, parameter_type, plain_type
from fedstack.computations.leaves.function_pickles import Reduced
from fedstack.computations.leaves.leaf import raise_leaf_error
from fedstack.computations.leaves.named_functions import Decorated
from fedstack.computations.leaves.python_functions import PythonFunction, bind, handle_content, registry
from fedstack.computations.leaves.vectorized_leaf import check_vectorized, stacked, unstacked
from fedstack.computations.types.language import (
    ConcreteComputation,
    FunctionType,
    StructType,
    TensorType,
    Type,
    Value,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.types.language_mistakes import explain_missing_contexts, note_fix
from fedstack.computations.types.type_structure import (
    common_type,
    fields_of,
    has_open_sizes,
    is_scalar,
    zeros,
)
from fedstack.computations.values.example_types import type_at
from fedstack.errors import FedstackError, InvalidComputationError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.number_checks import check_bool

_P = ParamSpec("_P")
_R = TypeVar("_R")


class LeafComputation(ConcreteComputation, Generic[_P, _R]):
    """A leaf computation that is made from a function, for all decorators.

    Type checkers see the signature of the decorated function. In a federated computation, a call with values of the
    language returns a value of the language.

    Args:
      function: The function.
      name: The name of the function in messages.
      message: The computation.
      signature: Its type.

    Attributes:
      __wrapped__: The decorated function. A direct call runs it without type conversions, checks or a context.
    """

    __wrapped__: Callable[_P, _R]

    def __init__(
        self,
        function: Callable[_P, _R],
        name: str,
        message: computation_pb2.Computation,
        signature: FunctionType,
    ) -> None:
        explain_missing_contexts()
        super().__init__(computation_proto=message, context_stack=get_context_stack(), annotated_type=signature)
        self._name = name
        functools.update_wrapper(self, function, updated=())

    @overload
    def __call__(self, value: Value, /, *args: object, **kwargs: object) -> Value: ...
    @overload
    def __call__(self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Runs the function in the current context. Arguments are passed by position or by name."""
        if self._is_part_of_another(args, kwargs):
            return self._run_as_part(args, kwargs)
        try:
            if not kwargs:
                return super().__call__(*args)
            parameter = self.type_signature.parameter
            fields = fields_of(parameter) if isinstance(parameter, StructType) else ()
            # The language matches keywords with members of the type, but not with names of parameters.
            if any(field in kwargs for field, _ in fields):
                return super().__call__(*args, **kwargs)
            return super().__call__(*self.by_position(args, kwargs))
        except Exception as error:
            note_fix(error)
            raise

    def _is_part_of_another(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Returns whether the arguments of a call show that the function is only a part of what runs."""
        return False

    def _run_as_part(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Runs the function as a part of what runs."""
        return cast("Callable[..., object]", self.__wrapped__)(*args, **kwargs)

    def by_position(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[object]:
        """Returns the arguments of a call in the order of the function's parameters."""
        return bound(inspect.signature(self.__wrapped__), self._name, args, kwargs).args

    def __get__(self, instance: object, owner: type | None = None) -> "LeafComputation[_P, _R]":
        """Returns the computation itself. Because the class has `__get__`, `help` shows its instances as functions."""
        return self


class PythonComputation(Decorated, LeafComputation[_P, _R]):
    """A leaf computation that runs a Python function in any fedstack executor. It keeps the function alive."""

    def __init__(self, function: PythonFunction) -> None:
        content, serial = handle_content(function)
        signature = FunctionType(function.parameter, function.result)
        message = computation_pb2.Computation(type=signature.to_proto(), data=computation_pb2.Data(content=content))
        super().__init__(cast("Callable[_P, _R]", function.function), function.name, message, signature)
        self._function = function
        self._serial = serial

    # The language calls these methods when it builds this computation into a larger one, which then has a copy of the
    # handle.

    def to_building_block(self) -> object:
        registry.keep(self._serial)
        return super().to_building_block()

    def to_compiled_building_block(self) -> object:
        registry.keep(self._serial)
        return super().to_compiled_building_block()

    def __reduce__(self) -> Reduced:
        """Makes the computation picklable, because functions that are sent by value may call it."""
        return _rebuilt, (write_function(self._function),)

    def __repr__(self) -> str:
        return f"<python_computation {self._function.name} {self.type_signature}>"


def bound(
    signature: inspect.Signature, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    """Binds the arguments of a call to the parameters of a function.

    Args:
      signature: The signature of the function.
      name: The name of the function in messages.
      args: The arguments by position.
      kwargs: The arguments by name.

    Raises:
      TypeMismatchError: If the function cannot be called with these arguments.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeMismatchError(
            f"Expected an argument for each of the parameters {list(signature.parameters)} of {name!r}, found "
            f"{len(args)} by position and {list(kwargs)} by name: {error}"
        ) from error


def python_computation(
    parameter_types: ParameterTypes = None, result_type: object = None, *, vectorized: bool = False
) -> Callable[[Callable[_P, _R]], PythonComputation[_P, _R]]:
    """Returns a decorator that turns a Python function into a leaf computation.

    >>> import numpy as np
    >>> @python_computation([np.float32, np.float32])
    ... def add(x, y):
    ...     return x + y
    >>> str(add.type_signature)
    '(<float32,float32> -> float32)'

    The function receives NumPy scalars and read-only arrays of exactly the declared dtypes. It can access the fields of
    a struct by attribute and by key, and can unpack a struct with `**`. Instances of attrs classes and dataclasses
    support access by attribute only. A field that has the name of a method of its container, such as `keys`, is
    accessible by key only. The function may be called on several threads at once. Its result is read as soon as it
    returns, so the function may return the same array again with new content in its next call. It must not change the
    array on another thread in the meantime.

    Args:
      parameter_types: One type per parameter of the function, as a sequence, or as a mapping from parameter names to
        types. `None` or an empty sequence means that the function has no parameters. A single type is equivalent to a
        list with this type. Each type may be any object that the language converts to a type. The parameter type of the
        computation is the declared type for a function with one parameter, and a struct for several parameters.
      result_type: The type of the function's result. By default, the return annotation is used. Without a usable
        annotation, the type is inferred from a call with zeros. If the parameters have unknown dimensions or sequences
        and the result is not a scalar, the type is inferred from two such calls, and dimensions whose sizes differ are
        unknown. In an inferred type, Python's own numbers count as float32 and int32, as everywhere in the language. A
        later result that does not match the inferred type is an error.
      vectorized: Whether the function processes several clients in one call. If so, each array that it receives has a
        first axis for the clients, scalars are arrays with this axis alone, and each array that it returns must have
        this axis as well. The types are those of one client. They consist of tensors of numbers with known shapes.
        A row of the result may depend only on the same row of the arguments. The number of rows follows from the types;
        rows that belong to no client are filled with the arguments of another client.

    Returns:
      The decorator.

    Raises:
      InvalidComputationError: If the number of types differs from the number of parameters, a type is not a plain type,
        or the result type is omitted and cannot be inferred.
      ResourceLimitError: If structs in a type are nested more deeply than a protobuf message allows.
    """
    if inspect.isroutine(parameter_types):
        raise InvalidComputationError(
            f"Expected parameter types, found the function {getattr(parameter_types, '__name__', '')!r}; write "
            "@fedstack.python_computation([np.float32]), with one type per parameter"
        )

    check_bool("vectorized", vectorized)

    def decorate(function: Callable[_P, _R]) -> PythonComputation[_P, _R]:
        name = getattr(function, "__name__", type(function).__name__)
        try:
            parameter = parameter_type(parameter_types, function, name)
            if vectorized:
                check_vectorized(name, parameter)
            result = _annotated(function, name) if result_type is None else plain_type(result_type, name)
            if result is None and vectorized:
                result = unstacked(_inferred(function, name, stacked(cast(Type, parameter), 2)), 2, name)
            elif result is None:
                result = _inferred(function, name, parameter)
            if vectorized:
                check_vectorized(name, parameter, result)
            computation: PythonComputation[_P, _R] = PythonComputation(
                PythonFunction(function, name, parameter, result, vectorized)
            )
        except (DecodeError, RecursionError) as error:
            # These errors are raised when the language converts a type to a message.
            raise ResourceLimitError(
                f"Expected types for {name!r} with at most about 30 nested structs, found more "
                f"({type(error).__name__}): protobuf allows 100 levels; move deeply nested members to an outer struct"
            ) from error
        return computation

    return decorate


def _rebuilt(written: WrittenFunction) -> PythonComputation[..., object]:
    return PythonComputation(written.read())


def _annotated(function: Callable[..., object], name: str) -> Type | None:
    """Returns the result type of a function according to its annotation, or `None` if the annotation is no type."""
    annotation = inspect.signature(function).return_annotation
    if annotation is not inspect.Signature.empty and not isinstance(annotation, str):
        try:
            return plain_type(annotation, name)
        except InvalidComputationError:
            pass  # the annotation is not a type of the language, such as np.ndarray: infer the type from a call
    return None


def _inferred(function: Callable[..., object], name: str, parameter: Type | None) -> Type:
    """Returns the result type of a function, inferred from a call with zeros."""
    advice = f"declare the result type of {name!r} with @python_computation(parameter_types, result_type)"
    call = bind(function, parameter)

    def call_on_zeros(open_size: int) -> Type:
        # Divisions by these zeros must neither warn nor, if warnings are errors, fail.
        with np.errstate(all="ignore"):
            try:
                value = call(None if parameter is None else zeros(parameter, open_size))
            except BaseException as error:
                raise_leaf_error(error, name, None)
        if value is None:
            raise InvalidComputationError("the function returned None; add a return statement")
        return plain_type(type_at(value, "result"), name)

    try:
        found = call_on_zeros(1)
    except FedstackError as error:
        raise InvalidComputationError(
            f"Cannot infer the result type of {name!r} from a call with zeros; {advice}: {error}"
        ) from error
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise InvalidComputationError(f"Cannot infer the type of the result: {error}; {advice}") from error
    if parameter is None or not has_open_sizes(parameter) or (isinstance(found, TensorType) and is_scalar(found)):
        return found
    # A call with another size shows which sizes of the result depend on the parameter's unknown sizes.
    try:
        other = call_on_zeros(2)
    except (FedstackError, TypeError, ValueError, NotImplementedError, AttributeError):
        return found  # the function does not accept other sizes
    common = common_type(found, other)
    if common is None:
        raise InvalidComputationError(
            f"Expected {name!r} to have the same result type for all unknown sizes in {parameter}, found {found} for "
            f"size 1 and {other} for size 2; {advice}"
        )
    return common
