"""Holds the version, in the one place from which the build reads it too."""

__version__ = "0.1.0.dev0"
