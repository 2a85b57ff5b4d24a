"""Connects to peers over gRPC: channels, credentials, connections, and the diagnosis of unreachable servers."""
