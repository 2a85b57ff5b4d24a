"""Reads tokens and compares them. A token travels with each call, as `authorization: Bearer ...`."""

import hmac
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias, cast

from fedstack.errors import InvalidValueError

File: TypeAlias = str | os.PathLike[str]

METADATA_KEY = "authorization"
# What our servers say to a call without one of their tokens.
TOKEN_REFUSED = "the token of this server is not with the call"
_SCHEME = "bearer"
_TOKEN = re.compile(r"[\x21-\x7e]+")


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the token in the metadata of a call, or an empty text."""
    for key, value in metadata:
        if key == METADATA_KEY and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == _SCHEME:
                return token.strip()
    return ""


def token_matches(token: str, allowed: Iterable[str]) -> bool:
    """Tells whether a token is one of those allowed, in a time that tells nothing about them."""
    matches = False
    for candidate in allowed:
        matches |= hmac.compare_digest(token.encode(errors="replace"), candidate.encode())
    return matches


def read_tokens(file: File) -> tuple[str, ...]:
    """Reads a token file: one token on each line; blank lines and lines that begin with `#` do not count.

    Raises:
      InvalidValueError: If the file cannot be read, or has no token or something else in it; the message names it.
    """
    try:
        lines = read_file(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"Expected tokens as text, found other bytes in {os.fspath(file)}") from error
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
    if not tokens:
        raise InvalidValueError(f"Expected a token on a line of {os.fspath(file)}, found none")
    for token in tokens:
        check_token(token, f" in {os.fspath(file)}")
    return tokens


def check_token(token: str, where: str = "") -> None:
    """Checks that a token can travel with a call.

    Raises:
      InvalidValueError: If not; the message does not have it.
    """
    if not isinstance(cast(object, token), str):
        raise InvalidValueError(f"Expected a token as text, found {type(token).__name__}{where}")
    if not _TOKEN.fullmatch(token):
        found = "other characters" if token else "none"
        raise InvalidValueError(f"Expected a token of printable ASCII without blanks, found {found}{where}")


def read_file(file: File) -> bytes:
    """Returns what is in a file.

    Raises:
      InvalidValueError: If it cannot be read; the message names it.
    """
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidValueError(f"Cannot read the file {os.fspath(file)}: {error.strerror}") from error
