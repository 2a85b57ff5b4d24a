"""Clients of a data service: references to their elements, and who reads these where they are consumed."""
