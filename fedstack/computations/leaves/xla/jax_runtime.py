"""Loads exported JAX functions.

An export runs no Python code, but its parser is native code that was not written for hostile bytes. Its digest is
therefore checked first, which finds accidents, and a server that anybody may call accepts no exports.
"""

import hashlib

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import Destination, LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.portability import XLA
from fedstack.computations.leaves.vectorized_leaf import stacked
from fedstack.computations.leaves.work_scope import current_policy
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.exported_program import Export, ExportedProgram, read_export, shown_array
from fedstack.computations.leaves.xla.jax_leaf import GroupLeaf, JaxLeaf
from fedstack.computations.leaves.xla.jax_sequences import ROWS, traced_leaves
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf, LoopedSequences, RowsLeaf, clients_at_once
from fedstack.computations.leaves.xla.program_chain import fuser_of
from fedstack.computations.leaves.xla.xla_program import ArrayProgram, ProgramOfRows
from fedstack.computations.types.language import FunctionType, TensorType, Type, computation_pb2
from fedstack.computations.types.type_structure import contains_sequence, exact_bytes, tensor_leaves, type_from_proto
from fedstack.errors import CarrierError
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.error_text import name_text, text_of
from fedstack.proto import carriers_pb2

CARRIER = carriers_pb2.JaxExport.DESCRIPTOR.full_name
# What federated_language_jax and other projects put into `xla` blocks. Its message is not installed here.
HLO = "xla.HloModuleProto"
_HLO_URL = f"type.googleapis.com/{HLO}"
# HLO modules by the digest and the name of the export. To write one takes some tens of milliseconds.
_written: SharedCache[tuple[bytes, str], bytes] = SharedCache(64, 32 << 20)
_MOST_LANES = 1 << 16
# Compiled code takes three times as much. Such leaves are dropped from caches before there are 256 of them.
COMPILED_BYTES = 512 << 10


class XlaRuntime(LeafRuntime):
    """A runtime of functions that XLA compiles. The policy allows all kinds of them, or none."""

    def shown(self, computation: computation_pb2.Computation) -> str:
        """Returns a description of a leaf for messages.

        Raises:
          CarrierError: If it cannot be read.
        """
        raise NotImplementedError

    def is_allowed(self, carrier: str, policy: CarrierPolicy) -> bool:
        return policy.jax_exports and jax_api.is_installed()

    def admit(self, computation: computation_pb2.Computation, policy: CarrierPolicy) -> None:
        shown = self.shown(computation)
        if not policy.jax_exports:
            raise CarrierError(
                f"Expected a computation of a client that this server knows, found {shown}; start the "
                "worker with --token-file or --tls-client-ca, or let it listen on 127.0.0.1, and omit --no-jax-exports"
            )
        if not jax_api.is_installed():
            raise CarrierError(f'JAX is not installed here, which {shown} needs: pip install "fedstack[jax]"')


class JaxRuntime(XlaRuntime):
    """Loads functions that JAX has exported, and sends them to other projects as HLO modules."""

    def shown(self, computation: computation_pb2.Computation) -> str:
        return f"the JAX export {name_text(_read(computation.xla.hlo_module).name)!r}"

    def portable(self, content: any_pb2.Any, destination: Destination) -> any_pb2.Any:
        return any_pb2.Any(type_url=_HLO_URL, value=_hlo_of(_read(content))) if destination.is_plain else content

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        export = _read(computation.xla.hlo_module)
        name = name_text(export.name)
        leaf = self._loaded(computation, export, name)
        leaf.held_bytes = COMPILED_BYTES
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
        program: ArrayProgram = self._program(export.exported, export.digest, name, parameter, result)
        leaves = [] if parameter is None else traced_leaves(parameter)
        rows = [index for index, (_, size) in enumerate(leaves) if size == ROWS]
        if rows:
            empty = None
            if export.empty:
                empty = ExportedProgram(read_export(_checked(export.empty, export.empty_digest, name), name), name)
                empty.check(
                    [_without_rows(leaf) if size == ROWS else leaf for leaf, size in leaves], tensors_of(result)
                )
            program = ProgramOfRows(program, empty, rows)
        alone = JaxLeaf(program, name, parameter, result)
        lanes = export.lanes
        if parameter is None:
            return alone
        if contains_sequence(parameter) and program.can_loop and exact_bytes(result) is not None:
            if not rows:
                return LoopedSequences(program, parameter, result, alone)
        if rows and program.can_loop and not contains_sequence(parameter):
            return RowsLeaf(program, name, parameter, result)
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
        program = ExportedProgram(read_export(_checked(content, digest, name), name), name)
        program.check([] if parameter is None else [leaf for leaf, _ in traced_leaves(parameter)], tensors_of(result))
        return program


def _checked(content: bytes, digest: bytes, name: str) -> bytes:
    """Returns an export after comparing its digest, before anything is parsed."""
    if hashlib.sha256(content).digest() != digest:
        raise CarrierError(
            f"Expected {name!r} as it was exported, found bytes with another digest; send it again, and check the "
            "disk or the network for errors"
        )
    return content


def tensors_of(type_spec: Type) -> list[TensorType]:
    """Returns the types of the tensors of a type, in order."""
    return [tensor for _, tensor in tensor_leaves(type_spec)]


def _without_rows(tensor: TensorType) -> TensorType:
    return TensorType(tensor.dtype.type, [0 if size is None else size for size in tensor.shape or ()])


def _hlo_of(carrier: carriers_pb2.JaxExport) -> bytes:
    """Returns an export as a serialized HLO module with the same parameters and results."""
    name = name_text(carrier.name)
    content = _checked(carrier.exported, carrier.digest, name)
    key = carrier.digest, name
    found = _written.get(key)
    if found is None:
        try:
            found = _converted(read_export(content, name), name)
        except CarrierError:
            raise
        except Exception as error:  # JAX may be missing, or the function may be for another kind of device
            raise CarrierError(
                f"Cannot write {name!r} as an HLO module, which the peer needs, since it is a plain executor service: "
                f"{text_of(error)}; use a fedstack worker"
            ) from error
        _written.put(key, found, len(found))
    return found


def _converted(export: Export, name: str) -> bytes:
    if not all(isinstance(size, int) for one in export.arguments for size in one.shape):
        raise CarrierError(
            f"Expected tensors of known sizes as the arguments of {name!r}, found "
            f"{', '.join(map(shown_array, export.arguments))}: the peer is a plain executor service, which takes "
            "neither sequences nor unknown sizes; declare all sizes, or use a fedstack worker"
        )
    return jax_api.hlo_of(export.call, export.arguments, name)


def _read(content: any_pb2.Any) -> carriers_pb2.JaxExport:
    if content.type_url.rpartition("/")[2] != CARRIER:
        raise CarrierError(f"Expected a {CARRIER} in an xla block, found {name_text(content.type_url) or 'none'}")
    try:
        return carriers_pb2.JaxExport.FromString(content.value)
    except DecodeError as error:
        raise CarrierError(f"The content is not a valid {CARRIER}: {error}") from error


register_leaf_runtime(CARRIER, JaxRuntime())
