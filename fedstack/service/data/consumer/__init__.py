"""Consumers of the data service: they take ranges of splits from a dispatcher and read them from data workers."""
