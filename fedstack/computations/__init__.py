"""What runs: types, values and their codec, leaf computations and their runtimes, plans."""
