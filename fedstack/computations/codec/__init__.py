"""Converts values to bytes and back.

Values are encoded either as messages of the language, or as fedstack's own messages followed by the raw bytes of large
arrays.
"""
