"""Data workers, which read datasets for consumers, one range of splits and one block of elements at a time."""
