"""Shared parts of reading a dataset: blocks of elements, their memory budget, and readers of data workers."""
