"""Datasets: their sources, their steps, and the messages that define them."""
