"""The lifecycle and configuration of a server of any services. Besides the transport, only this room imports gRPC."""
