"""Decides which worker runs which clients of a phase, and when clients move or run twice."""
