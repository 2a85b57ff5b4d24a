"""Loads functions that are HLO modules, which federated_language_jax and other projects put into `xla` blocks.

Only the bindings of a block say which parameters and results of its module belong to which tensors of the types. A
module cannot be vectorized, so it runs in a compiled loop over clients.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.leaf_runtimes import register_leaf_runtime
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.exported_program import Export, ExportedProgram, shown_array
from fedstack.computations.leaves.xla.jax_api import Traced
from fedstack.computations.leaves.xla.jax_leaf import JaxLeaf
from fedstack.computations.leaves.xla.jax_runtime import COMPILED_BYTES, HLO, XlaRuntime, tensors_of
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf, clients_at_once
from fedstack.computations.types.language import FunctionType, StructType, TensorType, Type, computation_pb2
from fedstack.computations.types.type_structure import exact_bytes, fields_of, type_from_proto
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import counted, name_text, text_of

_Binding = computation_pb2.Xla.Binding
# What a call of several clients computes at most.
_CALL_OPERATIONS = 1 << 20
_CALL_BYTES = 256 << 10
_MOST_CLIENTS = 1024


class HloRuntime(XlaRuntime):
    """Loads functions that are HLO modules."""

    def shown(self, computation: computation_pb2.Computation) -> str:
        return "an HLO module"

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        signature = type_from_proto(computation.type)
        if not isinstance(signature, FunctionType):
            raise CarrierError(f"Expected an HLO module to have a functional type, found {signature}")
        parameter, result = signature.parameter, signature.result
        for type_spec in (parameter, result):
            if type_spec is not None and exact_bytes(type_spec) is None:
                raise CarrierError(
                    f"Expected tensors of numbers with known sizes as the types of an HLO module, found {type_spec}; "
                    "declare all sizes, or send a function of fedstack.jax_computation"
                )
        block = computation.xla
        given = _indices(block.parameter, parameter, "parameter")
        returned = _indices(block.result, result, "result")
        try:
            _check_ends(block.hlo_module.value)
            found: Any = jax_api.read_hlo(block.hlo_module.value)
            name = name_text(found.fun_name).removeprefix("jit_")
            export = _in_order(Export.of(found), given, returned)
            program = ExportedProgram(export, name)
            program.check([] if parameter is None else tensors_of(parameter), tensors_of(result))
            cost = program.cost()
        except CarrierError:
            raise
        except Exception as error:  # the parser of HLO and MLIR raise errors of any kind
            raise CarrierError(
                f"Expected an HLO module in an xla block, found bytes that JAX {jax_api.version()} cannot read: "
                f"{text_of(error)}; send it again, or use the same version of XLA in both processes"
            ) from error
        alone = JaxLeaf(program, name, parameter, result)
        most = 1 if parameter is None or not program.can_loop else _clients_at_once(parameter, result, cost)
        leaf = alone if parameter is None or most == 1 else LoopedLeaf(program, parameter, result, most, alone)
        leaf.held_bytes = COMPILED_BYTES
        return leaf


def _check_ends(content: bytes) -> None:
    """Checks that a message is complete, since XLA accepts one that ends early."""
    try:
        empty_pb2.Empty.FromString(content)
    except DecodeError as error:
        raise CarrierError(
            "Expected a complete HLO module in an xla block, found bytes that end early or are none; send it again"
        ) from error


def _clients_at_once(parameter: Type, result: Type, cost: tuple[float, float] | None) -> int:
    """Returns for how many clients a module is called at once, a power of two. It does not affect results."""
    most = clients_at_once(parameter, result)
    if cost is None:
        return most
    operations, accessed = cost
    size = max(1, accessed, (exact_bytes(parameter) or 0) + (exact_bytes(result) or 0))
    cheap = int(min(_CALL_OPERATIONS // max(1, operations), _CALL_BYTES // size, _MOST_CLIENTS))
    return max(most, 1 << max(1, cheap).bit_length() - 1)


def _indices(binding: _Binding, type_spec: Type | None, kind: str) -> list[int]:
    """Returns the index of each tensor of a type in a module, as its binding says.

    Raises:
      CarrierError: If the binding has another structure than the type, or an index is missing, strange or used twice.
    """
    found = list(_bound(binding, type_spec, kind))
    if sorted(found) != list(range(len(found))):
        raise CarrierError(
            f"Expected the {kind} binding of an HLO module to have each index from 0 to {len(found) - 1} once, found "
            f"{name_text(', '.join(map(str, found)))}; bind each {kind} of the module to one tensor"
        )
    return found


def _bound(binding: _Binding, type_spec: Type | None, kind: str) -> Iterator[int]:
    has = binding.WhichOneof("binding")
    if isinstance(type_spec, TensorType) and has == "tensor":
        yield binding.tensor.index
        return
    members = fields_of(type_spec) if isinstance(type_spec, StructType) else ()
    if isinstance(type_spec, TensorType) or has == "tensor" or len(members) != len(binding.struct.element):
        shown = f"a struct of {len(binding.struct.element)}" if has == "struct" else "a tensor" if has else "nothing"
        raise CarrierError(
            f"Expected the {kind} binding of an HLO module to have the structure of {type_spec or 'no type'}, found "
            f"{shown}; write a binding for each tensor of the type"
        )
    for element, (_, member) in zip(binding.struct.element, members):
        yield from _bound(element, member, kind)


def _in_order(export: Export, given: Sequence[int], returned: Sequence[int]) -> Export:
    """Returns a function whose arguments and results are in the order of the types.

    Args:
      export: The function.
      given: The index of each tensor of the parameter among the parameters of the function.
      returned: The index of each tensor of the result among the results of the function.

    Raises:
      CarrierError: If the function has another number of parameters or results.
    """
    for kind, indices, found in (("parameter", given, export.arguments), ("result", returned, export.results)):
        if len(indices) != len(found):
            raise CarrierError(
                f"Expected an HLO module with {counted(len(indices), kind)}, as the block's bindings say, found "
                f"{', '.join(map(shown_array, found)) or 'none'}; bind each {kind} of the module to one tensor"
            )
    position = {index: place for place, index in enumerate(given)}

    def call(*arguments: Traced) -> list[Traced]:
        results = export.call(*[arguments[position[index]] for index in range(len(arguments))])
        return [results[index] for index in returned]

    return attrs.evolve(
        export,
        call=call,
        arguments=[export.arguments[index] for index in given],
        results=[export.results[index] for index in returned],
    )


register_leaf_runtime(HLO, HloRuntime())
