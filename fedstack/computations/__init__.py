"""What runs: values and their codec, leaf computations and their runtimes, plans, client data."""
