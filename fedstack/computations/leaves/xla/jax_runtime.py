"""Loads exported JAX functions.

An export runs no Python code, but its parser is native code that was not written for hostile bytes. Its digest is
therefore checked first, which finds accidents, and a server that anybody may call accepts no exports.
"""

import hashlib

from google.protobuf.message import DecodeError

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.portability import XLA
from fedstack.computations.leaves.vectorized_leaf import stacked
from fedstack.computations.leaves.work_scope import current_policy
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.exported_program import ExportedProgram
from fedstack.computations.leaves.xla.fused_leaves import GroupLeaf, fuser_of
from fedstack.computations.leaves.xla.jax_leaf import JaxLeaf
from fedstack.computations.leaves.xla.jax_sequences import ROWS, traced_leaves
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf, clients_at_once
from fedstack.computations.types.language import FunctionType, TensorType, Type, computation_pb2
from fedstack.computations.types.type_structure import tensor_leaves, type_from_proto
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto import carriers_pb2

CARRIER = carriers_pb2.JaxExport.DESCRIPTOR.full_name
_MOST_LANES = 1 << 16
# Compiled code takes three times as much. Such leaves are dropped from caches before there are 256 of them.
_COMPILED_BYTES = 512 << 10


class JaxRuntime(LeafRuntime):
    """Loads functions that JAX has exported."""

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        return policy.jax_exports and jax_api.is_installed()

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        export = _read(computation)
        name = name_text(export.name)
        if not policy.jax_exports:
            raise CarrierError(
                f"Expected a computation of a client that this server knows, found the JAX export {name!r}; start the "
                "worker with --token-file or --tls-client-ca, or let it listen on 127.0.0.1, and omit --no-jax-exports"
            )
        if not jax_api.is_installed():
            raise CarrierError(
                f'JAX is not installed here, which the function {name!r} needs: pip install "fedstack[jax]"'
            )

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        export = _read(computation)
        name = name_text(export.name)
        leaf = self._loaded(computation, export, name)
        leaf.held_bytes = _COMPILED_BYTES
        leaf.fuser = fuser_of(leaf)
        if export.fingerprint and export.fingerprint != jax_api.fingerprint():
            if current_policy().strict_modules:
                raise CarrierError(
                    f"Expected {name!r} from a process with the same version of jaxlib, device and processor, found a "
                    "difference, so that results may have other bits; use the same kind of machine, or start the "
                    "worker without --strict-modules"
                )
            leaf.differing_module = XLA
        return leaf

    def _loaded(
        self, computation: computation_pb2.Computation, export: carriers_pb2.JaxExport, name: str
    ) -> BoundOperation:
        signature = type_from_proto(computation.type)
        if not isinstance(signature, FunctionType):
            raise CarrierError(f"Expected {name!r} to have a functional type, found {signature}")
        own = jax_api.version()
        if jax_api.version_of(export.version)[:3] > jax_api.version_of(own)[:3]:
            raise CarrierError(
                f"Expected an export of JAX {own} or an older version, found {name!r} as an export of JAX "
                f"{name_text(export.version)}; install the same version of JAX in both processes"
            )
        parameter, result = signature.parameter, signature.result
        program = self._program(export.exported, export.digest, name, parameter, result)
        empty = None
        if export.empty and parameter is not None:
            empty = ExportedProgram(_checked(export.empty, export.empty_digest, name), name)
            leaves = [_without_rows(leaf) if name == ROWS else leaf for leaf, name in traced_leaves(parameter)]
            empty.check(leaves, _tensors(result))
        alone = JaxLeaf(program, name, parameter, result, empty)
        lanes = export.lanes
        if parameter is None:
            return alone
        if lanes <= 1:
            most = clients_at_once(parameter, result) if program.can_loop else 1
            return LoopedLeaf(program, parameter, result, most, alone) if most > 1 else alone
        if lanes & (lanes - 1) or lanes > _MOST_LANES:
            raise CarrierError(f"Expected a power of two of clients in a group of {name!r}, found {lanes}")
        types = stacked(parameter, lanes), stacked(result, lanes)
        group = self._program(export.group, export.group_digest, name, *types)
        return GroupLeaf(name, group, program, parameter, result, lanes)

    def _program(
        self, content: bytes, digest: bytes, name: str, parameter: Type | None, result: Type
    ) -> ExportedProgram:
        program = ExportedProgram(_checked(content, digest, name), name)
        program.check([] if parameter is None else [leaf for leaf, _ in traced_leaves(parameter)], _tensors(result))
        return program


def _checked(content: bytes, digest: bytes, name: str) -> bytes:
    """Returns an export after comparing its digest, before anything is parsed."""
    if hashlib.sha256(content).digest() != digest:
        raise CarrierError(
            f"Expected {name!r} as it was exported, found bytes with another digest; send it again, and check the "
            "disk or the network for errors"
        )
    return content


def _tensors(type_spec: Type) -> list[TensorType]:
    return [tensor for _, tensor in tensor_leaves(type_spec)]


def _without_rows(tensor: TensorType) -> TensorType:
    return TensorType(tensor.dtype.type, [0 if size is None else size for size in tensor.shape or ()])


def _read(computation: computation_pb2.Computation) -> carriers_pb2.JaxExport:
    content = computation.xla.hlo_module
    if content.type_url.rpartition("/")[2] != CARRIER:
        raise CarrierError(f"Expected a {CARRIER} in an xla block, found {name_text(content.type_url) or 'none'}")
    try:
        return carriers_pb2.JaxExport.FromString(content.value)
    except DecodeError as error:
        raise CarrierError(f"The content is not a valid {CARRIER}: {error}") from error


register_leaf_runtime(CARRIER, JaxRuntime())
