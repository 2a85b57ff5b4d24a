"""The lifecycle and configuration of servers. Only this package and the transport import gRPC."""
