"""Datasets as data: sources, steps, how they are read and divided, and how they are written."""
