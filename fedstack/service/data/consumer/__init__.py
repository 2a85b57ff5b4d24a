"""Consumers of the data service, which receive ranges of splits from a dispatcher and read them from data workers."""
