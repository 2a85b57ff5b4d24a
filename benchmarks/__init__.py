"""Measures fedstack against what the machine itself can do: `python -m benchmarks`, or `make bench`."""
