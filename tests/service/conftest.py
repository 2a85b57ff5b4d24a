"""Starts what a process needs for gRPC before the first test, and has certificates for those of TLS."""

from certificate_files import files as files
from certificate_files import others as others
from grpc_fixture import grpc_is_up as grpc_is_up
