"""Peers, independent of the transport: connections, stubs, leases, retries."""
