"""Represents Python functions in computations: by handle in this process, by reference or by value elsewhere.

| carrier | content | loading |
| --- | --- | --- |
| handle | `PythonHandle` | works in this process only |
| by reference | `PythonReference` | imports an installed module that is allowed |
| by value | `PickledPython` | executes the sender's code, only if allowed |

Decorating a function creates a handle. `portable_carrier` replaces the handle when a computation is sent to another
process.
"""

import hashlib
import sys
from typing import TypeVar

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.carrier_policy import ALLOW_CODE, CarrierPolicy
from fedstack.computations.leaves.computation_pickles import (
    Containers,
    containers_of,
    from_message,
    have_names,
    to_message,
    with_containers,
)
from fedstack.computations.leaves.function_pickles import dumps, loads, unwritable_variable, warn_if_large
from fedstack.computations.leaves.leaf_runtimes import PROCESS, Destination, LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.named_functions import (
    LOADING_ERRORS,
    check_unchanged,
    describe_error,
    function_digest,
    module_digest,
    resolve_reference,
    resolves_to_itself,
    script_of,
)
from fedstack.computations.leaves.python_functions import find_function, handle_of, known_function
from fedstack.computations.leaves.vectorized_leaf import python_leaf
from fedstack.computations.leaves.work_scope import current_policy
from fedstack.computations.types.language import FunctionType, computation_pb2
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.errors import CarrierError, InvalidComputationError
from fedstack.foundations.error_text import name_text
from fedstack.foundations.value_text import describe
from fedstack.proto import carriers_pb2

_M = TypeVar("_M", bound=Message)


class HandleRuntime(LeafRuntime):
    """Loads functions by handle."""

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        return True

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        self._handle(computation)

    def _handle(self, computation: computation_pb2.Computation) -> carriers_pb2.PythonHandle:
        handle = _unpack(computation, carriers_pb2.PythonHandle)
        if handle.process != PROCESS:
            raise CarrierError(
                f"Expected a function of this process, found a handle to {name_text(handle.name)!r} in another "
                "process; define the function at the top level of an installed module, or allow Python code"
            )
        return handle

    def portable(self, content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
        return portable_carrier(content, destination)

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        handle = self._handle(computation)
        found = known_function(handle)
        if found is None:
            raise CarrierError(
                f"Expected a function of this process, found {name_text(handle.name)!r}, which has been "
                "garbage-collected; keep a reference to the decorated function"
            )
        signature = FunctionType(found.parameter, found.result)
        declared = type_from_proto(computation.type)
        if not signature.is_equivalent_to(declared):
            raise CarrierError(f"Expected {found.name!r} to be declared with the type {signature}, found {declared}")
        return python_leaf(found.function, found.name, found.parameter, found.result, vectorized=found.vectorized)


class ReferenceRuntime(LeafRuntime):
    """Loads functions by module and qualified name, from allowed modules only."""

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        return True

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        reference = _unpack(computation, carriers_pb2.PythonReference)
        policy.check_module(reference.module, name_text(f"{reference.module}:{reference.qualname}"))

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        reference = _unpack(computation, carriers_pb2.PythonReference)
        allowed, shown = current_policy(), name_text(f"{reference.module}:{reference.qualname}")
        allowed.check_module(reference.module, shown)
        function = resolve_reference(reference.module, reference.qualname)
        if reference.digest or reference.module_digest:
            check_unchanged(function)
        if reference.digest and function_digest(function) != reference.digest:
            raise CarrierError(
                f"Expected the sender's version of {shown}, found another version; install the same version on "
                "the driver's machine and the worker"
            )
        own = module_digest(reference.module)
        differs = bool(own and reference.module_digest) and own != reference.module_digest
        if differs and allowed.strict_modules:
            raise CarrierError(
                f"Expected the sender's version of the module {name_text(reference.module)}, found a version in which "
                f"{name_text(reference.qualname)} is the same but other lines differ; install the same version on "
                "the driver's machine and the worker, or start the worker without --strict-modules"
            )
        containers = from_message(reference.parameter, allowed.check_module)
        name = name_text(reference.qualname)
        leaf = _leaf_of_type(function, name, computation, containers, vectorized=reference.vectorized)
        leaf.differing_module = reference.module if differs else ""
        return leaf


class PickledRuntime(LeafRuntime):
    """Loads functions by value, if the policy allows code."""

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        return policy.python_code

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        if not policy.python_code:
            pickled = _unpack(computation, carriers_pb2.PickledPython)
            raise CarrierError(
                f"Expected a Python function by reference, found {name_text(pickled.name)!r} by value; define the "
                f"function in an installed module, or {ALLOW_CODE}"
            )

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        self.admit(computation, current_policy())
        pickled = _unpack(computation, carriers_pb2.PickledPython)
        version = _python_version()
        if pickled.python_version != version:
            raise CarrierError(
                f"Expected code for Python {version}, found code for Python {pickled.python_version}; run the same "
                "version of Python on the driver's machine and the worker"
            )
        try:
            function, containers = loads(pickled.function)
        except LOADING_ERRORS as error:
            raise CarrierError(f"Loading {name_text(pickled.name)!r} raised {describe_error(error)}") from error
        if not isinstance(containers, Containers | None):
            raise CarrierError(
                f"Expected the pickle of {name_text(pickled.name)!r} to contain Containers or None, found "
                f"{describe(containers)}"
            )
        name = name_text(pickled.name)
        return _leaf_of_type(function, name, computation, containers, vectorized=pickled.vectorized)


def _leaf_of_type(
    function: object,
    name: str,
    computation: computation_pb2.Computation,
    containers: Containers | None,
    *,
    vectorized: bool,
) -> BoundOperation:
    signature = type_from_proto(computation.type)
    if not callable(function) or not isinstance(signature, FunctionType):
        raise CarrierError(f"Expected {name!r} to have a functional type, found {signature}")
    try:
        parameter = with_containers(signature.parameter, containers)
        return python_leaf(function, name, parameter, signature.result, vectorized=vectorized)
    except InvalidComputationError as error:
        raise CarrierError(str(error)) from None
    except (TypeError, ValueError) as error:  # a function in C may have no signature
        raise CarrierError(f"Expected a function with a signature, found {name!r}: {error}") from error


def _unpack(computation: computation_pb2.Computation, message: type[_M]) -> _M:
    content = computation.data.content
    if content.type_url.rpartition("/")[2] != message.DESCRIPTOR.full_name:
        raise CarrierError(f"Expected a {message.DESCRIPTOR.full_name}, found {name_text(content.type_url)}")
    try:
        return message.FromString(content.value)
    except DecodeError as error:
        raise CarrierError(f"The content is not a valid {message.DESCRIPTOR.full_name}: {error}") from error


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def code_version(content: any_pb2.Any) -> bytes | None:
    """Returns a digest of a function and its captures if it is sent by value; `None` for other contents.

    A function is sent by value with the current state of everything that it refers to: globals of its script, closures
    and helper functions.
    """
    handle = handle_of(content)
    found = None if handle is None else known_function(handle)
    if found is None or (resolves_to_itself(found.function) and have_names(containers_of(found.parameter))):
        return None
    try:
        return hashlib.sha256(dumps((found.function, containers_of(found.parameter)))).digest()
    except Exception:  # sending the function will raise the same error
        return b""


def portable_carrier(content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
    """Returns a portable carrier for a handle. Other contents are returned unchanged.

    Args:
      content: The content of a `data` block.
      destination: The process that will load the function.

    Raises:
      CarrierError: If the function cannot be sent by reference, and either the destination does not accept code or
        the function cannot be pickled.
    """
    handle = handle_of(content)
    if handle is None:
        return content
    found = find_function(handle)
    result = any_pb2.Any()
    function = found.function
    containers = containers_of(found.parameter)
    if resolves_to_itself(function) and have_names(containers):
        module, qualname = function.__module__, function.__qualname__
        reference = carriers_pb2.PythonReference(
            module=module,
            qualname=qualname,
            digest=function_digest(function),
            module_digest=module_digest(module),
            vectorized=found.vectorized,
        )
        if containers is not None:
            reference.parameter.CopyFrom(to_message(containers))
        result.Pack(reference)
    elif destination.takes_code:
        try:
            pickled = dumps((function, containers))
        except Exception as error:  # objects that the function refers to may raise anything
            variable = unwritable_variable(function)
            where = f" (in its variable {variable!r})" if variable else ""
            raise CarrierError(
                f"Pickling {found.name!r} raised {type(error).__name__}: {error}{where}; do not refer to objects that "
                "belong to this process, such as locks and open files"
            ) from error
        warn_if_large(function, found.name, len(pickled))
        version, vectorized = _python_version(), found.vectorized
        carrier = carriers_pb2.PickledPython(
            function=pickled, python_version=version, name=found.name, vectorized=vectorized
        )
        result.Pack(carrier)
    else:
        script = script_of(function)
        why = f" (importing {script} on a worker would run the script)" if script else ""
        raise CarrierError(
            f"Expected a portable function, found {found.name!r}, which is local to this process{why}; define it at "
            f"the top level of a module that is installed on the worker, or {destination.advice}"
        )
    return result


register_leaf_runtime(carriers_pb2.PythonHandle.DESCRIPTOR.full_name, HandleRuntime())
register_leaf_runtime(carriers_pb2.PythonReference.DESCRIPTOR.full_name, ReferenceRuntime())
register_leaf_runtime(carriers_pb2.PickledPython.DESCRIPTOR.full_name, PickledRuntime())
