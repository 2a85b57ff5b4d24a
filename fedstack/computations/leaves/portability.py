"""Finds the leaves in computations, and asks their runtimes what may leave this process, and what may enter it.

A worker may have another version of the module of a function: its constants and helpers may differ, and so the result.
The worker notices that when it loads the function, and says so in the answer to each request with it; the caller warns
once per module.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence

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
_logger = logging.getLogger(__name__)
_warned_of = set[str]()


def leaves_of(computation: Computation) -> Iterator[Computation]:
    """Yields the leaf computations and data blocks in a computation, which are parts of its message."""
    kind = computation.WhichOneof("computation")
    if kind in ("data", "xla", "tensorflow"):
        yield computation
        return
    for part in _parts(computation, kind):
        yield from leaves_of(part)


def intrinsics_of(computation: Computation) -> Iterator[str]:
    """Yields the names of the intrinsics in a computation, as often as they occur."""
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


def used_locals(block: computation_pb2.Block) -> list[computation_pb2.Block.Local]:
    """Returns the locals that the result of a block needs, in order."""
    wanted = free_references(block.result)
    used: list[computation_pb2.Block.Local] = []
    for local in reversed(block.local):
        if local.name in wanted:
            wanted.discard(local.name)
            wanted |= free_references(local.value)
            used.append(local)
    used.reverse()
    return used


def free_references(computation: Computation) -> set[str]:
    """Returns the names that a computation refers to and does not bind itself."""
    kind = computation.WhichOneof("computation")
    if kind == "reference":
        return {computation.reference.name}
    if kind == "block":
        found = free_references(computation.block.result)
        for local in reversed(computation.block.local):
            found.discard(local.name)
            found |= free_references(local.value)
        return found
    found = set[str]().union(*map(free_references, _parts(computation, kind)))
    return found - {getattr(computation, "lambda").parameter_name} if kind == "lambda" else found


def portable(computation: Computation, destination: Destination) -> Computation:
    """Returns the computation with portable leaves; the same message if all of them are.

    Raises:
      CarrierError: If a leaf cannot be sent to the destination; the message says what to do.
    """
    carriers = [(content_of(leaf), _portable_content(leaf, destination)) for leaf in leaves_of(computation)]
    if all(carrier is content for content, carrier in carriers):
        return computation
    sent = Computation()
    sent.CopyFrom(computation)
    for leaf, (_, carrier) in zip(leaves_of(sent), carriers):
        if carrier is not None:
            content = content_of(leaf)
            assert content is not None
            content.CopyFrom(carrier)
    return sent


def _portable_content(leaf: Computation, destination: Destination) -> any_pb2.Any | None:
    content, runtime = content_of(leaf), find_runtime(carrier_of(leaf) or "")
    return content if content is None or runtime is None else runtime.portable(content, destination)


def needs_runtime_import(computation: Computation) -> bool:
    """Returns whether `check_received` imports a runtime first, which may take a while."""
    return any(needs_import(carrier_of(leaf)) for leaf in leaves_of(computation))


def check_received(computation: Computation, policy: CarrierPolicy) -> None:
    """Checks that the policy allows all leaves of a computation from another process.

    Raises:
      CarrierError: If it does not; the message says what to do.
    """
    for leaf in leaves_of(computation):
        name = carrier_of(leaf) or ""
        runtime = find_runtime(name)
        if runtime is not None:
            runtime.admit(leaf, policy)
        elif leaf.WhichOneof("computation") != "data":  # a data block may be for a data executor
            raise unknown_carrier(name)


def leaves_to_load(computation: Computation, loaded: LoadedLeaves) -> list[Computation]:
    """Returns the leaf functions in a computation that have yet to be loaded, which may take a while."""
    return [
        leaf
        for leaf in leaves_of(computation)
        if leaf.type.WhichOneof("type") == "function" and loaded.find(leaf) is None
    ]


def differing_modules(computations: Iterable[Computation], loaded: LoadedLeaves) -> Sequence[str]:
    """Returns the modules of the functions in computations of which the sender has another version.

    Args:
      computations: The received computations.
      loaded: The functions in them, loaded.
    """
    if not loaded.some_differ:
        return ()
    leaves = [loaded.find(leaf) for computation in computations for leaf in leaves_of(computation)]
    return sorted({leaf.differing_module for leaf in leaves if leaf is not None and leaf.differing_module})


def warn_of_differing(modules: Iterable[str], address: str) -> None:
    """Logs a warning for each module that a worker has in another version, once per module.

    Args:
      modules: The names that the worker reports; those that are not modules of this process are ignored.
      address: The address of the worker.
    """
    for module in modules:
        if module in sys.modules and module not in _warned_of:
            _warned_of.add(module)
            _logger.warning(
                "The module %s at the worker at %s differs from the one here: helpers and constants of its functions "
                "may give other results there; install the same version on both sides (a worker that was started with "
                "--strict-modules refuses such functions)",
                module,
                address,
            )
