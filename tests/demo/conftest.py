"""Starts what a process needs for gRPC before the first test."""

from grpc_fixture import grpc_is_up as grpc_is_up
