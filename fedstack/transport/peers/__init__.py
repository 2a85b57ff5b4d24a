"""Communicates with peers independently of the transport: connections, stubs, leases and retries."""
