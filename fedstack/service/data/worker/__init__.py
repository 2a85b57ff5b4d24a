"""Data workers: they read datasets for whoever asks, a range of splits and a block of elements at a time."""
