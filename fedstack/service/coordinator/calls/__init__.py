"""The functions that closures call, and the arguments of the calls."""
