"""Calls on their way from gRPC to the methods of services."""
