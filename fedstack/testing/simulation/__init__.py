"""A cluster in one thread, with simulated time and a simulated network. All other code is the production code."""
