"""Transports messages between peers: encodings, connections, stubs, leases, retries, and gRPC."""
