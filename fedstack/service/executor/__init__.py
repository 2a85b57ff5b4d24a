"""The executor service, which runs computations for other processes."""
