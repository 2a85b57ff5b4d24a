"""Peers, whatever carries the bytes: connections, stubs, leases, retry."""
