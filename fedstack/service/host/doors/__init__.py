"""The transports over which calls reach a server. They pass the calls to the router."""
