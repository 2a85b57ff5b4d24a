"""One gRPC server, whatever it serves."""
