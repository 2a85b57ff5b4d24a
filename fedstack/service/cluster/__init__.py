"""Tasks of a cluster. Each task is a single server for all its services."""
