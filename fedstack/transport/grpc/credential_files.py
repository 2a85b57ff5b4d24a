"""Reads tokens, certificates and keys from files, checks them, and reads them again when the files change."""

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
_SCHEME = "bearer"
_TOKEN = re.compile(r"[\x21-\x7e]+")


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the bearer token in the metadata of a call, or an empty string."""
    for key, value in metadata:
        if key == METADATA_KEY and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == _SCHEME:
                return token.strip()
    return ""


def token_matches(token: str, allowed: Iterable[str]) -> bool:
    """Returns whether a token is allowed. The time that this takes reveals nothing about the allowed tokens."""
    matches = False
    for candidate in allowed:
        matches |= hmac.compare_digest(token.encode(errors="replace"), candidate.encode())
    return matches


def read_tokens(file: File) -> tuple[str, ...]:
    """Reads the tokens in a file: one token per line. Blank lines and lines that begin with `#` are ignored.

    Raises:
      InvalidValueError: If the file cannot be read, contains no token, or contains an invalid token. The message names
        the file.
    """
    try:
        lines = read_file(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"Expected tokens in UTF-8, found another encoding in {os.fspath(file)}; save the file as UTF-8"
        ) from error
    tokens = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
    if not tokens:
        raise InvalidValueError(
            f"Expected at least one token in {os.fspath(file)}, found none; add a line with a token"
        )
    for token in tokens:
        check_token(token, f" in {os.fspath(file)}")
    return tokens


def check_token(token: str, where: str = "") -> None:
    """Checks that a token can be sent in the metadata of a call.

    Args:
      token: The token.
      where: The location of the token, such as " in FILE", for the error message.

    Raises:
      InvalidValueError: If the token cannot be sent. The message does not contain the token.
    """
    if not isinstance(cast(object, token), str):
        raise InvalidValueError(f"Expected a token as text, found {type(token).__name__}{where}; pass a str")
    if not _TOKEN.fullmatch(token):
        found = "other characters" if token else "an empty string"
        raise InvalidValueError(f"Expected a token of printable ASCII characters without spaces, found {found}{where}")


def read_file(file: File) -> bytes:
    """Returns the content of a file.

    Raises:
      InvalidValueError: If the file cannot be read. The message names the file.
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
    """Detects changes to files.

    A missing file counts as unchanged, because a file may be deleted just before it is replaced, and a user may delete
    a secret after it has been read.

    Args:
      files: The paths of the files.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]) -> None:
        self.files = tuple(os.path.abspath(file) for file in files)
        self._seen = self._signature()

    def has_changed(self) -> bool:
        """Returns whether any of the files has changed since the last call."""
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
    """A value that is read from files, and read again when the files change. Thread-safe.

    Args:
      value: The initial value.
      watch: A watch of the files that was created before they were read; `None` for a value that never changes.
      read: A function that reads the value again.
      run: Runs the function that logs a change; by default, the function is called directly. If `get` is called on a
        thread that Python did not create, `run` should use another thread, because logging would leak an object there.
      clock: A function that returns the time in seconds.
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
        self._watch = copy.copy(watch)  # a copy, so that each value detects changes independently
        self._read = read
        self._run = run
        self._clock = clock
        self._next_look = clock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Creates a new, unlocked lock. Called by the constructor and after a fork."""
        self._lock = threading.Lock()

    def get(self) -> _T:
        """Returns the current value.

        The files are checked at most once a second. If their new content is invalid, a warning is logged once, and the
        previous value is kept.
        """
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
            self._run(lambda: _logger.info("Reloaded %s", names))


def why_unusable(certificate: bytes | None, private_key: bytes | None, roots: bytes | None) -> str | None:
    """Returns why certificates or keys cannot be used; `None` if they can.

    Python's `ssl` module reads a certificate and its key from files only, so both are written to a private temporary
    folder for the check.

    Args:
      certificate: The certificate (PEM), if any.
      private_key: The private key of the certificate (PEM), if any.
      roots: The certificates of trusted authorities (PEM), if any.
    """
    try:
        if certificate is not None and private_key is not None:
            load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, private_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "Expected a certificate and its private key, found the key of another certificate"
        return "Expected a certificate and an unencrypted private key in PEM, found content that cannot be read"
    try:
        if roots is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=roots.decode("ascii", "replace"))
    except ssl.SSLError:
        return "Expected certificates of authorities in PEM, found content that cannot be read"
    return None


def load_pair(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    """Loads a certificate and its private key into a context.

    Raises:
      ssl.SSLError: If the certificate or the key cannot be read, or if they do not match.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        for path, content in zip(paths, (certificate, private_key)):
            path.write_bytes(content)
        # Without a password argument, Python would prompt for a password on the terminal.
        context.load_cert_chain(*paths, password="-")


def why_not_valid(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why a certificate is not valid now. TLS itself reports such a problem to the peer only.

    Args:
      certificates: The certificate and the chain that leads to its authority (PEM).
      now: The time to check against, with a time zone; by default the current time.

    Returns:
      A clause about the first invalid certificate, such as "it expired on 2026-01-31 12:00 UTC". `None` if all
      certificates are valid, if they cannot be read, or if the `certs` extra is not installed.
    """
    for position, fault in enumerate(_faults(certificates, now)):
        if fault is not None:
            return f"{'it' if position == 0 else 'a certificate in its chain'} {fault}"
    return None


def why_no_authority(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why no certificate in a list of authorities (PEM) is valid now; `None` if at least one is valid."""
    faults = _faults(certificates, now)
    return f"it {faults[0]}" if faults and None not in faults else None


def _faults(certificates: bytes, now: datetime.datetime | None) -> list[str | None]:
    """Returns, for each certificate, the problem with its validity period, or `None` if the certificate is valid."""
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
