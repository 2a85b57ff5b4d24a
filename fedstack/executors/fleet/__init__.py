"""Which workers are there, and which clients each of them gets."""
