"""The tasks of a cluster. Each task is a single server with several services."""
