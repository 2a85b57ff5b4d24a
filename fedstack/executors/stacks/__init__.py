"""Factories: executors that are put together."""
