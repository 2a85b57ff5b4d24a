"""Threads, event loops, and coroutines that run at most once."""
