"""Processes that search for the client that ends its worker."""
