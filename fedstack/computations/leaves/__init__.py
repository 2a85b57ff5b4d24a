"""Leaf computations: their runtimes, which of them may leave or enter a process, and those of Python functions."""
