"""Leaf computations that are compiled by XLA."""
