"""Starts what a process needs for gRPC before the first test, and has certificates for those of TLS."""

import pytest
from certificate_files import CertificateFiles, write_certificates
from grpc_fixture import grpc_is_up as grpc_is_up


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Certificates of another authority, for another host."""
    return write_certificates(tmp_path_factory.mktemp("others"), ["other.example"])
