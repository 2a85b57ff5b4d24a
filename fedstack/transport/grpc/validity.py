"""Says of a certificate whether it is valid today: TLS tells that to the other side, and not to whoever has it."""

import base64
import datetime
import re
from collections.abc import Iterator

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17


def why_not_valid(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why a certificate cannot be used now.

    Args:
      certificates: The certificate in PEM, and those that lead to its authority.
      now: The time, with its zone; that of the clock by default.

    Returns:
      A few words on the first of them that is not valid, as in "it expired on 2026-01-31 12:00 UTC"; `None` if all are,
      as far as they can be read.
    """
    for position, why in enumerate(_faults(certificates, now)):
        if why is not None:
            return f"{'it' if position == 0 else 'one of those that lead to its authority'} {why}"
    return None


def why_no_authority(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why none of several certificates of authorities can be used now; `None` if one can."""
    faults = list(_faults(certificates, now))
    return f"it {faults[0]}" if faults and None not in faults else None


def _faults(certificates: bytes, now: datetime.datetime | None) -> Iterator[str | None]:
    now = now or datetime.datetime.now(datetime.timezone.utc)
    for match in _PEM.finditer(certificates):
        try:
            begin, end = _validity(base64.b64decode(match[1]))
        except (IndexError, ValueError):
            yield None  # whoever uses it finds that out
            continue
        if now > end:
            yield f"expired on {end:%Y-%m-%d %H:%M} UTC"
        elif now < begin:
            yield f"is not valid before {begin:%Y-%m-%d %H:%M} UTC"
        else:
            yield None


def _validity(certificate: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """Reads the two times out of a certificate (RFC 5280, section 4.1).

    Raises:
      IndexError, ValueError: If it is none.
    """
    _, at, _ = _element(certificate, 0)  # Certificate
    _, at, _ = _element(certificate, at)  # TBSCertificate
    tag, _, end = _element(certificate, at)
    at = end if tag == _VERSION else at
    for _ in ("serialNumber", "signature", "issuer"):
        _, _, at = _element(certificate, at)
    _, at, _ = _element(certificate, at)  # Validity
    begin, at = _time(certificate, at)
    end_time, _ = _time(certificate, at)
    return begin, end_time


def _element(content: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of the element of DER that is there, where its content begins, and where it ends."""
    tag, length, start = content[at], content[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(content[start : start + size], "big"), start + size
    return tag, start, start + length


def _time(content: bytes, at: int) -> tuple[datetime.datetime, int]:
    tag, start, end = _element(content, at)
    text = content[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year; those of this century are less than 50
        text = ("20" if int(text[:2]) < 50 else "19") + text
    found = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    return found.replace(tzinfo=datetime.timezone.utc), end
