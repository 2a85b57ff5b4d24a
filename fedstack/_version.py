"""Defines the version of fedstack. The build reads the version from this module too."""

__version__ = "0.1.0.dev0"
