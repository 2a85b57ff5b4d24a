"""Aggregations along the fixed tree."""
