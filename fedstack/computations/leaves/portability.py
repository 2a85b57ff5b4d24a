"""Finds the leaves in computations, prepares them for sending, and checks received leaves against the policy.

A worker may have a different version of a function's module. Constants and helper functions may then differ, and with
them the results. The worker detects this when it loads the function, and reports the module in its response to every
request that uses the function. The caller logs a warning once per module. A worker that compiles JAX functions in
another way refuses a phase before its clients run, unless the caller accepts other bits.
"""

import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence

import attrs
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
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.types.language import computation_pb2
from fedstack.errors import CarrierError

Computation = computation_pb2.Computation
_logger = logging.getLogger(__name__)
_warned_of = set[str]()
# What a worker reports if it compiles JAX functions in another way.
XLA = "jaxlib"


def leaves_of(computation: Computation) -> Iterator[Computation]:
    """Yields the leaf computations and data blocks in a computation, as parts of its message (not copies)."""
    kind = computation.WhichOneof("computation")
    if kind in ("data", "xla", "tensorflow"):
        yield computation
        return
    for part in _parts(computation, kind):
        yield from leaves_of(part)


def intrinsics_of(computation: Computation) -> Iterator[str]:
    """Yields the name of each intrinsic in a computation, once per occurrence."""
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
        yield getattr(computation, "lambda").result  # `lambda` is a reserved word in Python
    elif kind == "struct":
        for element in computation.struct.element:
            yield element.value
    elif kind == "selection":
        yield computation.selection.source


def used_locals(block: computation_pb2.Block) -> list[computation_pb2.Block.Local]:
    """Returns the locals on which the result of a block depends, in the order in which the block binds them."""
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
    """Returns the free variables of a computation: the names that it references but does not bind."""
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
    """Returns a copy of a computation with portable leaves, or the same message if all leaves are portable.

    Raises:
      CarrierError: If a leaf cannot be sent to the destination. The message contains advice.
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
    """Returns whether `check_received` would have to import a runtime, which may take a while."""
    return any(needs_import(carrier_of(leaf)) for leaf in leaves_of(computation))


def check_received(computation: Computation, policy: CarrierPolicy) -> None:
    """Checks that a policy allows all leaves of a computation from another process.

    Raises:
      CarrierError: If the policy does not allow a leaf. The message contains advice.
    """
    for leaf in leaves_of(computation):
        name = carrier_of(leaf) or ""
        runtime = find_runtime(name)
        if runtime is not None:
            runtime.admit(leaf, policy)
        elif leaf.WhichOneof("computation") != "data":  # a data executor may support an unknown data block
            raise unknown_carrier(name)


def leaves_to_load(computation: Computation, loaded: LoadedLeaves) -> list[Computation]:
    """Returns the leaf functions in a computation that have not been loaded yet."""
    return [
        leaf
        for leaf in leaves_of(computation)
        if leaf.type.WhichOneof("type") == "function" and loaded.find(leaf) is None
    ]


def differing_modules(computations: Iterable[Computation], loaded: LoadedLeaves) -> Sequence[str]:
    """Returns the names of modules that define received functions and differ from the sender's versions.

    Args:
      computations: The received computations.
      loaded: The cache with the loaded functions of the computations.
    """
    if not loaded.some_differ:
        return ()
    leaves = [loaded.find(leaf) for computation in computations for leaf in leaves_of(computation)]
    return sorted({leaf.differing_module for leaf in leaves if leaf is not None and leaf.differing_module})


@attrs.frozen(eq=False)
class Fleet(SystemScope):
    """What a call expects of the workers that run its clients.

    Attributes:
      mixed: Whether they may compile JAX functions in another way than this process, so that results have other bits.
    """

    mixed: bool


def needs_same_bits() -> bool:
    """Returns whether the current call refuses workers that compile JAX functions in another way."""
    fleet = current_scope().of(Fleet)
    return fleet is not None and not fleet.mixed


def check_fleet(modules: Iterable[str]) -> None:
    """Refuses work of a caller that wants the same bits, if this process compiles JAX functions in another way.

    Every worker is compared with the process that exported a function, and so with all other workers.

    Args:
      modules: The names of the modules that differ here.

    Raises:
      CarrierError: If this process compiles JAX functions in another way.
    """
    if XLA in modules:
        raise CarrierError(
            "Expected a worker with the version of jaxlib, the flags of XLA, and the kind of device and of processor "
            "with which the JAX functions of this call were exported, found another; at "
            f"{socket.gethostname()}, process {os.getpid()}; use the same everywhere, so that results have the same "
            "bits, or pass mixed=True to the context, and they agree up to rounding"
        )


def warn_of_differing(modules: Iterable[str], address: str) -> None:
    """Logs a warning for each module of which a worker has a different version, once per module.

    Args:
      modules: The names that the worker reported. Names of modules that this process has not imported are ignored.
      address: The address of the worker.
    """
    for module in modules:
        if module in sys.modules and module not in _warned_of:
            _warned_of.add(module)
            if module == XLA:
                _logger.warning(
                    "The worker at %s has another version of jaxlib, other flags of XLA, another device or processor, "
                    "so the last bits of its results may differ from those of this process and of other workers; use "
                    "the same everywhere, or start the worker with --strict-modules to reject such functions",
                    address,
                )
                continue
            _logger.warning(
                "The module %s on the worker at %s differs from the local version, so its functions may return "
                "different results on the worker; install the same version here and on the worker, or start the "
                "worker with --strict-modules to reject such functions",
                module,
                address,
            )
