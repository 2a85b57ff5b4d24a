"""The public interface for runtimes of leaf computations that are not Python functions."""

from fedstack.computations.leaves import carriers as _carriers  # registers the runtime of Python functions
from fedstack.computations.leaves.bound_operation import FusedStep, FusedTensor, Fuser
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.leaf_runtimes import Destination, LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.xla import hlo_runtime as _hlo_runtime  # registers the runtimes of JAX functions

__all__ = [
    "CarrierPolicy",
    "Destination",
    "FusedStep",
    "FusedTensor",
    "Fuser",
    "Leaf",
    "LeafRuntime",
    "register_leaf_runtime",
]

del _carriers, _hlo_runtime
