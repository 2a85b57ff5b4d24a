"""Datasets: their sources and steps, how they are read and divided, and their definitions as messages."""
