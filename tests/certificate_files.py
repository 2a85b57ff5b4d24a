"""Certificates for tests that need TLS: an authority, a server and a client, in files."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest
import trustme

from fedstack.command_line.certificates import CertificateFiles

HERE = ("localhost", "127.0.0.1", "::1")


def write_certificates(folder: Path, names: Sequence[str] = HERE, *, expired: bool = False) -> CertificateFiles:
    """Writes certificates of a new authority; those that have expired did so a day ago."""
    folder.mkdir(exist_ok=True)
    files = CertificateFiles.in_folder(folder)
    now = datetime.datetime.now(datetime.timezone.utc)
    ends = now + datetime.timedelta(days=-1 if expired else 30)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.ca)
    for cert, key, dialled in (
        (files.server_cert, files.server_key, names),
        (files.client_cert, files.client_key, ["client"]),
    ):
        issued = authority.issue_cert(*dialled, not_before=now - datetime.timedelta(days=2), not_after=ends)
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
    return files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Certificates of another authority, for another host."""
    return write_certificates(tmp_path_factory.mktemp("others"), ["other.example"])
