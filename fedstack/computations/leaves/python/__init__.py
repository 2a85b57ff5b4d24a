"""Leaf computations that are Python functions."""
