"""The public interface for runtimes of leaf computations that are not Python functions."""

from fedstack.computations.leaves import carriers as _carriers  # registers the runtime of Python functions
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.leaves.leaf_runtimes import Destination, LeafRuntime, register_leaf_runtime
from fedstack.computations.leaves.xla import jax_leaf as _jax_leaf  # registers the runtime of JAX functions

__all__ = ["CarrierPolicy", "Destination", "Leaf", "LeafRuntime", "register_leaf_runtime"]

del _carriers, _jax_leaf
