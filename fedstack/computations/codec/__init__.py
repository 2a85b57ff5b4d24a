"""Converts values to bytes and back: as messages of the language, or as ours with the memory of arrays beside them."""
