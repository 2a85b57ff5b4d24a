"""Whether certificates are valid today is read out of them, where `cryptography` is installed."""

import datetime
import sys

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedstack.transport.grpc.credential_files import why_no_authority, why_not_valid

NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
KEY = ec.generate_private_key(ec.SECP256R1())


def day(year: int) -> datetime.datetime:
    return datetime.datetime(year, 1, 1, 12, 30, tzinfo=datetime.timezone.utc)


def certificate(begin: datetime.datetime, end: datetime.datetime) -> bytes:
    builder = x509.CertificateBuilder(NAME, NAME, KEY.public_key(), 7, begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_certificate_is_valid_from_its_first_moment_to_its_last() -> None:
    begin, end, second = day(1990), day(2050), datetime.timedelta(seconds=1)
    found = b"What it is for:\n" + certificate(begin, end)
    assert why_not_valid(found, begin) is None
    assert why_not_valid(found, end) is None
    assert why_not_valid(found, begin - second) == "it is not valid before 1990-01-01 12:30 UTC"
    assert why_not_valid(found, end + second) == "it expired on 2050-01-01 12:30 UTC"


def test_those_that_lead_to_the_authority_have_to_be_valid_too() -> None:
    chain = certificate(day(2020), day(2030)) + certificate(day(2020), day(2022))
    assert why_not_valid(chain, day(2021)) is None
    assert why_not_valid(chain, day(2023)) == ("a certificate in its chain expired on 2022-01-01 12:30 UTC")


def test_of_several_authorities_one_that_is_valid_will_do() -> None:
    several = certificate(day(2020), day(2022)) + certificate(day(2020), day(2030))
    assert why_no_authority(several, day(2023)) is None
    assert why_no_authority(several, day(2031)) == "it expired on 2022-01-01 12:30 UTC"


@pytest.mark.parametrize("content", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"])
def test_nothing_is_said_of_what_is_no_certificate(content: bytes) -> None:
    assert why_not_valid(content) is None
    assert why_no_authority(content) is None


def test_nothing_is_said_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = certificate(day(1990), day(1991))
    assert why_not_valid(expired) is not None
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert why_not_valid(expired) is None
