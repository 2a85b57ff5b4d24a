"""A cluster in one thread: simulated time, a simulated network, and everything else as it is."""
