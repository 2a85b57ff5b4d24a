"""Asks leaf runtimes what of a computation can leave this process, and what of one from elsewhere may come in."""

from collections.abc import Iterator

from google.protobuf import any_pb2

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import (
    Destination,
    LoadedLeaves,
    carrier_of,
    content_of,
    find_runtime,
    needs_import,
    unknown_carrier,
)
from fedstack.computations.types.language import computation_pb2

Computation = computation_pb2.Computation


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


def portable(computation: Computation, destination: Destination) -> Computation:
    """Returns the computation with leaves that can leave this process; the same message if all of them can.

    Raises:
      CarrierError: If a leaf cannot go there; the message says what to do.
    """
    carriers = [(content_of(leaf), _portable_content(leaf, destination)) for leaf in leaves_of(computation)]
    if all(carrier is content for content, carrier in carriers):
        return computation
    travelling = Computation()
    travelling.CopyFrom(computation)
    for leaf, (_, carrier) in zip(leaves_of(travelling), carriers):
        if carrier is not None:
            content = content_of(leaf)
            assert content is not None
            content.CopyFrom(carrier)
    return travelling


def _portable_content(leaf: Computation, destination: Destination) -> any_pb2.Any | None:
    content, runtime = content_of(leaf), find_runtime(carrier_of(leaf) or "")
    return content if content is None or runtime is None else runtime.portable(content, destination)


def needs_runtime_import(computation: Computation) -> bool:
    """Returns whether `check_received` imports a runtime first, which may take a while."""
    return any(needs_import(carrier_of(leaf)) for leaf in leaves_of(computation))


def check_received(computation: Computation, policy: CarrierPolicy) -> None:
    """Checks that a computation from elsewhere brings only leaves that the policy lets in.

    Raises:
      CarrierError: If not; the message says what to do.
    """
    for leaf in leaves_of(computation):
        name = carrier_of(leaf) or ""
        runtime = find_runtime(name)
        if runtime is not None:
            runtime.admit(leaf, policy)
        elif leaf.WhichOneof("computation") != "data":  # a data block may be for a data executor
            raise unknown_carrier(name)


def leaves_to_load(computation: Computation, loaded: LoadedLeaves) -> list[Computation]:
    """Lists the leaf functions in a computation that have not been loaded, which may take a while."""
    return [
        leaf
        for leaf in leaves_of(computation)
        if leaf.type.WhichOneof("type") == "function" and loaded.find(leaf) is None
    ]
