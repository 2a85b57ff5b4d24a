"""Payloads as messages of the language, and how large they will be."""
