"""A task of a cluster: one server for everything that it hosts."""
