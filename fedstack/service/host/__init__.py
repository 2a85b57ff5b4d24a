"""A server's life and configuration, whatever it serves: the one room beside the transport that knows gRPC."""
