"""Tracks which peers can be reached: they are dialled and may be lost, and callers wait for them for a limited time."""
