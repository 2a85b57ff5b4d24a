"""The engine that a user already has runs the clients: a Ray cluster, any pool of processes."""
