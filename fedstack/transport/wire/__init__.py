"""Defines messages and their encodings: addresses, clusters, frames, parcels, statuses and heartbeats."""
