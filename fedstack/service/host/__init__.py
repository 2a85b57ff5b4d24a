"""The lifecycle and configuration of servers. Only the doors, `host.py` and the transport import gRPC."""
