"""Reads and checks the parts of credentials: tokens, certificates and keys, in files that may change."""

import contextlib
import copy
import datetime
import hmac
import logging
import os
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar, cast

from fedstack.errors import InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork

File: TypeAlias = str | os.PathLike[str]

METADATA_KEY = "authorization"
# The status details of our servers for a call without one of their tokens.
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
    """Returns whether a token is allowed, in a time that reveals nothing about the allowed ones."""
    matches = False
    for candidate in allowed:
        matches |= hmac.compare_digest(token.encode(errors="replace"), candidate.encode())
    return matches


def read_tokens(file: File) -> tuple[str, ...]:
    """Reads a token file: one token a line; blank lines and lines that begin with `#` do not count.

    Raises:
      InvalidValueError: If the file cannot be read, has no token, or has other content; the message names it.
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
      InvalidValueError: If it cannot; the message does not show it.
    """
    if not isinstance(cast(object, token), str):
        raise InvalidValueError(f"Expected a token as text, found {type(token).__name__}{where}")
    if not _TOKEN.fullmatch(token):
        found = "other characters" if token else "none"
        raise InvalidValueError(f"Expected a token of printable ASCII without blanks, found {found}{where}")


def read_file(file: File) -> bytes:
    """Returns the content of a file.

    Raises:
      InvalidValueError: If the file cannot be read; the message names it.
    """
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidValueError(f"Cannot read the file {os.fspath(file)}: {error.strerror}") from error


_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_Signature: TypeAlias = tuple[tuple[int, int, int], ...]


class FileWatch:
    """Notices changes of files.

    A missing file counts as unchanged: a file may be deleted before it is replaced, and a secret may be read once and
    then deleted.

    Args:
      files: Their paths.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]) -> None:
        self.files = tuple(os.path.abspath(file) for file in files)
        self._seen = self._signature()

    def has_changed(self) -> bool:
        """Returns whether one of the files has changed since the last call."""
        now = self._signature()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _signature(self) -> _Signature | None:
        try:
            found = [os.stat(file) for file in self.files]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


class Renewed(Generic[_T]):
    """A value that was read from files, and is read again when they change. Any thread may get it.

    Args:
      value: The first value.
      watch: The files, as they were before they were read; `None` for a value that never changes.
      read: Reads the value again.
      run: Runs the logging of a change: on a thread that is not Python's, logging would create an object that stays.
      clock: Returns the time in seconds.
    """

    def __init__(
        self,
        value: _T,
        watch: FileWatch | None,
        read: Callable[[], _T],
        run: Callable[[Callable[[], None]], object] = lambda tell: tell(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._value = value
        self._watch = copy.copy(watch)  # each value of the same files notices changes by itself
        self._read = read
        self._run = run
        self._clock = clock
        self._next_look = clock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts with a free lock."""
        self._lock = threading.Lock()

    def get(self) -> _T:
        """Returns the value. Checks the files at most once a second, and warns once of invalid content."""
        if self._watch is None or self._clock() < self._next_look:
            return self._value
        with self._lock:
            self._next_look = self._clock() + _LOOK_SECONDS
            if self._watch.has_changed():
                self._renew(", ".join(self._watch.files))
            return self._value

    def _renew(self, names: str) -> None:
        try:
            self._value = self._read()
        except InvalidValueError as error:
            words = str(error)
            self._run(lambda: _logger.warning("Keeping the previous content of %s: %s", names, words))
        else:
            self._run(lambda: _logger.info("Read %s again", names))


def why_unusable(certificate: bytes | None, private_key: bytes | None, roots: bytes | None) -> str | None:
    """Returns the fault of a certificate and its key, or of authorities, all in PEM; `None` without one.

    Python's TLS reads the first two from files only, so they are in a private folder for a moment.
    """
    try:
        if certificate is not None and private_key is not None:
            load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, private_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "Expected a certificate and its own key, found the key of another certificate"
        return "Expected a certificate and a key in PEM, the key without a password, found others"
    try:
        if roots is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=roots.decode("ascii", "replace"))
    except ssl.SSLError:
        return "Expected certificates of authorities in PEM, found others"
    return None


def load_pair(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    """Loads a certificate and its key into a context.

    Raises:
      ssl.SSLError: If they cannot be read, or do not match.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        for path, content in zip(paths, (certificate, private_key)):
            path.write_bytes(content)
        # Without a password argument, Python would ask for one at the terminal.
        context.load_cert_chain(*paths, password="-")


def why_not_valid(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why a certificate is not valid now, which TLS reports to the other side only.

    Args:
      certificates: The certificate in PEM, and the chain that leads to its authority.
      now: The time, with its zone; the current time by default.

    Returns:
      A few words on the first invalid certificate, as in "it expired on 2026-01-31 12:00 UTC"; `None` if all are valid
      or unreadable, or without the extra `certs`.
    """
    for position, fault in enumerate(_faults(certificates, now)):
        if fault is not None:
            return f"{'it' if position == 0 else 'one of those that lead to its authority'} {fault}"
    return None


def why_no_authority(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why none of several certificates of authorities is valid now; `None` if one is."""
    faults = _faults(certificates, now)
    return f"it {faults[0]}" if faults and None not in faults else None


def _faults(certificates: bytes, now: datetime.datetime | None) -> list[str | None]:
    """Returns the fault of each certificate's dates; `None` for a valid one."""
    now = now or datetime.datetime.now(datetime.timezone.utc)
    faults: list[str | None] = []
    with contextlib.suppress(ModuleNotFoundError, ValueError):  # other checks report unreadable certificates
        from cryptography import x509

        for certificate in x509.load_pem_x509_certificates(certificates):
            begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if now > end:
                faults.append(f"expired on {end:%Y-%m-%d %H:%M} UTC")
            else:
                faults.append(f"is not valid before {begin:%Y-%m-%d %H:%M} UTC" if now < begin else None)
    return faults
