"""Whether certificates are valid today is read out of them, whoever made them."""

import datetime
import ssl

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fedstack.transport.grpc.validity import why_no_authority, why_not_valid

NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
# Of version 1, which is not written down in certificates: made by `openssl x509 -req`.
FIRST_VERSION = (
    b"-----BEGIN CERTIFICATE-----\n"
    b"MIIBEzCBuQIUH+qHCz0WiFr9Hl0joHa5gSUqVWYwCgYIKoZIzj0EAwIwDDEKMAgG\n"
    b"A1UEAwwBYTAeFw0yNjExMjEyMDU4MjRaFw0yNjExMjIyMDU4MjRaMAwxCjAIBgNV\n"
    b"BAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARmD0CJuJmRgOhlPu4OOsEy\n"
    b"Cx1GScbkJFw1+BC6QX5wOwE4TG6dULbJmIO5AINakMnf/zMHLl8YCrTNyVr4+KBV\n"
    b"MAoGCCqGSM49BAMCA0kAMEYCIQCRQu/Nqy+mdvyS/0eN0V8+9vkUbPSeYxmHx5sW\n"
    b"j0c4BQIhAO6lOAzCeWKrugIGhoN91tOBiSGqwmcwgQ0saObvzY2c\n"
    b"-----END CERTIFICATE-----\n"
)
KEY = rsa.generate_private_key(65537, 2048)  # of a length for which the elements of DER say it in several bytes


def day(year: int, month: int = 1, number: int = 1) -> datetime.datetime:
    return datetime.datetime(year, month, number, 12, 30, tzinfo=datetime.timezone.utc)


def certificate(begin: datetime.datetime, end: datetime.datetime) -> bytes:
    builder = x509.CertificateBuilder(NAME, NAME, KEY.public_key(), 7, begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("end", [day(2049, 12, 31), day(2050), day(9999, 12, 31)])
def test_a_certificate_is_valid_from_its_first_moment_to_its_last(end: datetime.datetime) -> None:
    begin = day(1990, 5, 6)  # two digits of the year; they are four from 2050 on
    found = b"What it is for:\n" + certificate(begin, end)
    second = datetime.timedelta(seconds=1)
    assert why_not_valid(found, begin) is None
    assert why_not_valid(found, end) is None
    assert why_not_valid(found, begin - second) == "it is not valid before 1990-05-06 12:30 UTC"
    if end < day(9999):
        assert why_not_valid(found, end + second) == f"it expired on {end:%Y-%m-%d} 12:30 UTC"


def test_the_times_of_a_certificate_without_a_version_are_found_too() -> None:
    assert why_not_valid(FIRST_VERSION, day(2025)) == "it is not valid before 2026-11-21 20:58 UTC"


def test_those_that_lead_to_the_authority_have_to_be_valid_too() -> None:
    chain = certificate(day(2020), day(2030)) + certificate(day(2020), day(2022))
    assert why_not_valid(chain, day(2021)) is None
    assert why_not_valid(chain, day(2023)) == (
        "one of those that lead to its authority expired on 2022-01-01 12:30 UTC"
    )


def test_of_several_authorities_one_that_is_valid_will_do() -> None:
    several = certificate(day(2020), day(2022)) + certificate(day(2020), day(2030))
    assert why_no_authority(several, day(2023)) is None
    assert why_no_authority(several, day(2031)) == "it expired on 2022-01-01 12:30 UTC"
    assert why_no_authority(b"") is None


def test_nothing_is_said_of_what_is_no_certificate() -> None:
    content = ssl.PEM_cert_to_DER_cert(certificate(day(1990), day(1991)).decode())
    for end in range(len(content)):
        why = why_not_valid(ssl.DER_cert_to_PEM_cert(content[:end]).encode(), day(2020))
        assert why in (None, "it expired on 1991-01-01 12:30 UTC")
    assert why_not_valid(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n") is None
