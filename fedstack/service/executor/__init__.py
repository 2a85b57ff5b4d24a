"""The executor service, which runs computations of other processes."""
