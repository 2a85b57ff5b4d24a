"""Carries Python functions inside computations: by handle here, by reference or by value to other processes.

| carrier | content | loading it |
| --- | --- | --- |
| handle | `PythonHandle` | this process only |
| by reference | `PythonReference` | imports an allow-listed, installed module |
| by value | `PickledPython` | executes code; only where allowed |

A handle is made at decoration. It becomes one of the others in one place, `portable_carrier`, when a computation leaves
the process.
"""

import contextvars
import hashlib
import itertools
import sys
import uuid
import weakref
from collections.abc import Callable, Collection
from typing import TypeVar

import attrs
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message

from fedstack.computations.leaves.leaf_runtimes import Leaf, register_leaf_runtime
from fedstack.computations.leaves.python.code_modules import is_as_good_as_code, is_inside, is_internal
from fedstack.computations.leaves.python.function_pickles import dumps, loads
from fedstack.computations.leaves.python.named_functions import (
    LOADING_ERRORS,
    check_unchanged,
    digest_of,
    resolve_reference,
    resolves_to_itself,
    told_of,
)
from fedstack.computations.leaves.python.python_containers import (
    Containers,
    containers_of,
    from_message,
    have_names,
    to_message,
    with_containers,
)
from fedstack.computations.leaves.python.python_functions import PythonLeaf
from fedstack.computations.types.language import FunctionType, Type, computation_pb2
from fedstack.computations.types.texts import name_text
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import CarrierError
from fedstack.proto import carriers_pb2

_M = TypeVar("_M", bound=Message)

PROCESS = uuid.uuid4().hex
# What to do about a function that can go by value only, where the worker is one of ours.
ALLOW_CODE = "start the worker with --allow-python-code"


@attrs.frozen(eq=False)
class PythonFunction:
    """A decorated function with its annotated types; `PythonHandle.serial` finds it in the registry."""

    function: Callable[..., object]
    name: str
    parameter: Type | None
    result: Type


class HandleRegistry:
    """Finds the functions of this process by the serial number of their handle.

    A function is held weakly as long as only the object that the decorator returned refers to it, and for good once
    that object has been built into another computation: from then on copies of the handle may be anywhere.
    """

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._known: weakref.WeakValueDictionary[int, PythonFunction] = weakref.WeakValueDictionary()
        self._kept: dict[int, PythonFunction] = {}

    def add(self, function: PythonFunction) -> int:
        """Registers a function and returns its serial number."""
        serial = next(self._serials)
        self._known[serial] = function
        return serial

    def keep(self, serial: int) -> None:
        """Holds the function for as long as the process lives."""
        found = self._known.get(serial)
        if found is not None:
            self._kept[serial] = found

    def find(self, serial: int) -> PythonFunction | None:
        """Returns the function, or `None` if it is gone."""
        return self._known.get(serial)

    def __len__(self) -> int:
        return len(self._known)


registry = HandleRegistry()


def handle_content(function: PythonFunction) -> tuple[any_pb2.Any, int]:
    """Registers a function and returns the content of its `data` block, and the serial number."""
    serial = registry.add(function)
    content = any_pb2.Any()
    content.Pack(carriers_pb2.PythonHandle(process=PROCESS, serial=serial, name=function.name))
    return content, serial


def handle_of(content: any_pb2.Any) -> carriers_pb2.PythonHandle | None:
    """Returns the handle that the content of a `data` block is; `None` for other contents."""
    handle = carriers_pb2.PythonHandle()
    return handle if content.Unpack(handle) else None


def find_function(handle: carriers_pb2.PythonHandle) -> PythonFunction:
    """Returns the function of a handle.

    Raises:
      CarrierError: If there is none in this process.
    """
    found = registry.find(handle.serial) if handle.process == PROCESS else None
    if found is None:
        raise CarrierError(f"Expected a live function of this process, found none for {name_text(handle.name)!r}")
    return found


class HandleRuntime:
    """Loads functions by handle."""

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        handle = _unpack(computation, carriers_pb2.PythonHandle())
        if handle.process != PROCESS:
            raise CarrierError(
                f"Expected a function of this process, found a handle of another one to {name_text(handle.name)!r}; "
                "send the computation with a carrier that travels: define the function at the top of an installed "
                "module, or allow Python code by value"
            )
        found = registry.find(handle.serial)
        if found is None:
            raise CarrierError(
                f"Expected the function {name_text(handle.name)!r} to be alive, found it garbage collected"
            )
        signature = FunctionType(found.parameter, found.result)
        declared = type_from_proto(computation.type)
        if not signature.is_equivalent_to(declared):
            raise CarrierError(f"Expected {found.name!r} to have its type {signature}, found it declared as {declared}")
        return PythonLeaf(found.function, found.name, found.parameter, found.result)


@attrs.define
class CarrierPolicy:
    """Says which carriers this process loads from others.

    Attributes:
      modules: The modules into which references are followed, with all their submodules; `*` stands for any. Those of
        fedstack itself are never meant, but for its example.
      python_code: Whether functions by value are loaded; that executes what the sender wrote. References are followed
        into any module then, as such code could do it too.
    """

    modules: Collection[str] = ()
    python_code: bool = False

    def allows_module(self, module: str) -> bool:
        """Tells whether a reference into `module` may be followed."""
        return self.python_code or (
            any(allowed == "*" or is_inside(module, allowed) for allowed in self.modules) and not is_internal(module)
        )

    def check_module(self, module: str, shown: str) -> None:
        """Checks that a reference may be followed.

        Args:
          module: The module that it leads into.
          shown: The reference, for messages.

        Raises:
          CarrierError: If not; the message says what to do.
        """
        if self.allows_module(module):
            return
        if is_as_good_as_code(module) or is_internal(module):  # whoever allows one of those allows any code
            advice = "call it in a function of a module of your own"
        else:
            advice = f"start the worker with --allow-module {name_text(module)}"
        raise CarrierError(
            f"Expected a function of an allowed module ({', '.join(self.modules) or 'none'}), found {shown}; {advice}"
        )

    @property
    def runs_anything(self) -> bool:
        """Whether clients can run any code, in one way or another: Python's own modules have `eval` and `rmtree`."""
        return self.python_code or any(module == "*" or is_as_good_as_code(module) for module in self.modules)


policy = CarrierPolicy()
# What a service allows its clients, while it works for one; two services of a process may differ.
service_policy: contextvars.ContextVar[CarrierPolicy | None] = contextvars.ContextVar("service_policy", default=None)


def current_policy() -> CarrierPolicy:
    """Returns the policy in force: that of the service which runs the current work, else this process's own."""
    return service_policy.get() or policy


class ReferenceRuntime:
    """Loads functions by module and qualified name, from allow-listed modules only."""

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        reference = _unpack(computation, carriers_pb2.PythonReference())
        allowed, shown = current_policy(), name_text(f"{reference.module}:{reference.qualname}")
        allowed.check_module(reference.module, shown)
        function = resolve_reference(reference.module, reference.qualname)
        if reference.digest:
            check_unchanged(function)
        if reference.digest and digest_of(function) != reference.digest:
            raise CarrierError(
                f"Expected the sender's version of {shown}, found another; install the same one on both sides"
            )
        containers = from_message(reference.parameter, allowed.check_module)
        return _leaf_of_type(function, name_text(reference.qualname), computation, containers)


class PickledRuntime:
    """Loads functions by value, where that is allowed."""

    def load(self, computation: computation_pb2.Computation) -> Leaf:
        pickled = _unpack(computation, carriers_pb2.PickledPython())
        if not current_policy().python_code:
            raise CarrierError(
                f"Expected no Python code by value, found the function {name_text(pickled.name)!r}; define it "
                f"in an installed module, or {ALLOW_CODE}"
            )
        version = _python_version()
        if pickled.python_version != version:
            raise CarrierError(f"Expected code for Python {version}, found {pickled.python_version}; use one version")
        try:
            function, containers = loads(pickled.function)
        except LOADING_ERRORS as error:
            raise CarrierError(
                f"Expected a function that can be loaded, found that loading {name_text(pickled.name)!r} raised "
                f"{told_of(error)}"
            ) from error
        if not isinstance(containers, Containers | None):
            raise CarrierError(f"Expected containers beside {name_text(pickled.name)!r}, found {describe(containers)}")
        return _leaf_of_type(function, name_text(pickled.name), computation, containers)


def _leaf_of_type(
    function: object, name: str, computation: computation_pb2.Computation, containers: Containers | None
) -> Leaf:
    signature = type_from_proto(computation.type)
    if not callable(function) or not isinstance(signature, FunctionType):
        raise CarrierError(f"Expected a function of a functional type, found {name!r} of type {signature}")
    try:
        return PythonLeaf(function, name, with_containers(signature.parameter, containers), signature.result)
    except (TypeError, ValueError) as error:  # a function in C may not say what it takes
        raise CarrierError(f"Expected a Python function, found {name!r}: {error}") from error


def _unpack(computation: computation_pb2.Computation, message: _M) -> _M:
    content = computation.data.content
    try:
        is_one = content.Unpack(message)
    except DecodeError as error:
        raise CarrierError(f"Expected a {message.DESCRIPTOR.full_name}, found bytes that are none: {error}") from error
    if not is_one:
        raise CarrierError(f"Expected a {message.DESCRIPTOR.full_name}, found {name_text(content.type_url)}")
    return message


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def code_version(content: any_pb2.Any) -> bytes | None:
    """Returns what tells apart the states of a function that goes by value; `None` for other contents.

    Such a function takes along what it refers to as that is now: globals of a script, closures, helpers.
    """
    handle = handle_of(content)
    found = registry.find(handle.serial) if handle is not None and handle.process == PROCESS else None
    if found is None or (resolves_to_itself(found.function) and have_names(containers_of(found.parameter))):
        return None
    try:
        return hashlib.sha256(dumps((found.function, containers_of(found.parameter)))).digest()
    except Exception:  # sending it will tell
        return b""


def portable_carrier(content: any_pb2.Any, *, allow_by_value: bool, advice: str = ALLOW_CODE) -> any_pb2.Any:
    """Returns a carrier that can leave this process for the content of a handle; other contents as they are.

    Args:
      content: The content of a `data` block.
      allow_by_value: Whether functions may go by value.
      advice: What to do where one would have to, and may not.

    Raises:
      CarrierError: If the function can go neither by reference nor, where not allowed, by value.
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
        reference = carriers_pb2.PythonReference(module=module, qualname=qualname, digest=digest_of(function))
        if containers is not None:
            reference.parameter.CopyFrom(to_message(containers))
        result.Pack(reference)
    elif allow_by_value:
        try:
            pickled = dumps((function, containers))
        except Exception as error:  # what it refers to may refuse in any way
            raise CarrierError(
                f"Expected a function that can be pickled, found that {found.name!r} raised {type(error).__name__}: "
                f"{error}; refer to nothing that belongs to this process, such as locks and open files"
            ) from error
        result.Pack(carriers_pb2.PickledPython(function=pickled, python_version=_python_version(), name=found.name))
    else:
        raise CarrierError(
            f"Expected a function that can travel, found {found.name!r}, which is local to this process; define it at "
            f"the top of a module that is installed on the worker, or {advice}"
        )
    return result


register_leaf_runtime(carriers_pb2.PythonHandle.DESCRIPTOR.full_name, HandleRuntime())
register_leaf_runtime(carriers_pb2.PythonReference.DESCRIPTOR.full_name, ReferenceRuntime())
register_leaf_runtime(carriers_pb2.PickledPython.DESCRIPTOR.full_name, PickledRuntime())
