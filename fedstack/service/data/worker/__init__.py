"""Data workers: they read datasets for their clients, a range of splits and a block of elements at a time."""
