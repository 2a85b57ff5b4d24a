"""Starts what a process needs for gRPC before the first test, and has certificates for those of TLS."""

import logging
from collections.abc import Iterator

import pytest
from certificate_files import files as files
from certificate_files import others as others
from grpc_fixture import grpc_is_up as grpc_is_up


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Takes back how a server that ran in this process has set up logging: its stream is closed with the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers).difference(before):
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)
