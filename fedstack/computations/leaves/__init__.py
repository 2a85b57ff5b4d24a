"""Leaf computations: their runtimes, the rules for sending and receiving them, and leaves made of Python functions."""
