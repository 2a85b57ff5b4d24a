"""gRPC: channels, credentials, targets, and what is wrong when nobody answers."""
