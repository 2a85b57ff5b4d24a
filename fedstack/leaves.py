"""The public interface for runtimes of leaf computations that are not Python functions."""

from fedstack.computations.leaves import carriers as _carriers  # registers the runtime of Python functions
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.leaf_runtimes import Destination, LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.xla import hlo_leaf as _hlo_leaf  # registers the runtimes of JAX functions

__all__ = ["CarrierPolicy", "Destination", "Leaf", "LeafRuntime", "register_leaf_runtime"]

del _carriers, _hlo_leaf
