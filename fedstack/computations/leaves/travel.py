"""Gets computations ready to leave this process, and looks at what came in from another one.

Leaf functions are handles here; `portable` replaces them by carriers that the other side can load. `check_received`
refuses what a service does not let its clients send, before anything is loaded.
"""

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves, carrier_of
from fedstack.computations.leaves.python.carriers import ALLOW_CODE, PROCESS, CarrierPolicy, portable_carrier
from fedstack.computations.types.language import computation_pb2
from fedstack.computations.types.texts import name_text
from fedstack.errors import CarrierError
from fedstack.proto import carriers_pb2

_M = TypeVar("_M", bound=Message)

Computation = computation_pb2.Computation
_HANDLE = carriers_pb2.PythonHandle.DESCRIPTOR.full_name
_REFERENCE = carriers_pb2.PythonReference.DESCRIPTOR.full_name
_PICKLED = carriers_pb2.PickledPython.DESCRIPTOR.full_name


def leaves_of(computation: Computation) -> Iterator[Computation]:
    """Yields the leaf computations and data blocks in a computation, parts of the message itself."""
    kind = computation.WhichOneof("computation")
    if kind in ("data", "xla", "tensorflow"):
        yield computation
        return
    for part in _parts(computation, kind):
        yield from leaves_of(part)


def intrinsics_of(computation: Computation) -> Iterator[str]:
    """Yields the names of the intrinsics in a computation, each as often as it is there."""
    kind = computation.WhichOneof("computation")
    if kind == "intrinsic":
        yield computation.intrinsic.uri
    for part in _parts(computation, kind):
        yield from intrinsics_of(part)


def _parts(computation: Computation, kind: str | None) -> Iterator[Computation]:
    if kind == "call":
        yield computation.call.function
        if computation.call.HasField("argument"):
            yield computation.call.argument
    elif kind == "block":
        for local in computation.block.local:
            yield local.value
        yield computation.block.result
    elif kind == "lambda":
        yield getattr(computation, "lambda").result  # a reserved word in Python
    elif kind == "struct":
        for element in computation.struct.element:
            yield element.value
    elif kind == "selection":
        yield computation.selection.source


def portable(computation: Computation, *, allow_by_value: bool, advice: str = ALLOW_CODE) -> Computation:
    """Returns the computation with carriers that can leave this process; the same message if it has no handles.

    Args:
      computation: The computation.
      allow_by_value: Whether functions may go by value.
      advice: What to do where one would have to, and may not.

    Raises:
      CarrierError: If a function can go neither by reference nor, where not allowed, by value.
    """
    if not any(carrier_of(leaf) == _HANDLE for leaf in leaves_of(computation)):
        return computation
    travelling = Computation()
    travelling.CopyFrom(computation)
    for leaf in leaves_of(travelling):
        if carrier_of(leaf) == _HANDLE:
            carrier = portable_carrier(leaf.data.content, allow_by_value=allow_by_value, advice=advice)
            leaf.data.content.CopyFrom(carrier)
    return travelling


def check_received(computation: Computation, policy: CarrierPolicy) -> None:
    """Checks that a computation from elsewhere brings only leaves that the policy lets in.

    Raises:
      CarrierError: If not; the message says what to do.
    """
    for leaf in leaves_of(computation):
        carrier = carrier_of(leaf)
        if leaf.WhichOneof("computation") == "tensorflow":
            raise CarrierError(
                "Expected a leaf computation that this worker runs, found a TensorFlow graph; write the function with "
                "fedstack.python_computation"
            )
        if carrier == _HANDLE:
            handle = _content(leaf, carriers_pb2.PythonHandle)
            if handle.process != PROCESS:
                raise CarrierError(
                    f"Expected a function that can travel, found a handle to {name_text(handle.name)!r} in "
                    "another process; send it by reference or by value"
                )
        elif carrier == _REFERENCE:
            reference = _content(leaf, carriers_pb2.PythonReference)
            policy.check_module(reference.module, name_text(f"{reference.module}:{reference.qualname}"))
        elif carrier == _PICKLED and not policy.python_code:
            pickled = _content(leaf, carriers_pb2.PickledPython)
            raise CarrierError(
                f"Expected no Python code by value, found the function {name_text(pickled.name)!r}; define it "
                f"in an installed module, or {ALLOW_CODE}"
            )


def _content(leaf: Computation, message: type[_M]) -> _M:
    try:
        return message.FromString(leaf.data.content.value)
    except DecodeError as error:
        raise CarrierError(f"Expected a {message.DESCRIPTOR.full_name}, found bytes that are none: {error}") from error


def leaves_to_load(computation: Computation, loaded: LoadedLeaves) -> list[Computation]:
    """Lists the leaf functions in a computation whose loading may take a while, and that have not been loaded."""
    return [
        leaf
        for leaf in leaves_of(computation)
        if leaf.type.WhichOneof("type") == "function" and carrier_of(leaf) != _HANDLE and not loaded.has(leaf)
    ]
