"""Leaf computations: what a runtime is, and what leaves this process."""
