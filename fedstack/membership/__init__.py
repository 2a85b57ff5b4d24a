"""Tracks which peers are reachable, and lets callers wait for reachable peers for a limited time."""
