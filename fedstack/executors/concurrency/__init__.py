"""Threads, loops, and work that is done once."""
