"""Stores the definitions of datasets in files or in memory, and finds them by digest."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from fedstack.errors import JournalError
from fedstack.foundations.synced_folders import sync_folder
from fedstack.service.data.dispatcher.private_files import make_files_private, make_private_folder, open_private

_UNFINISHED, _DAMAGED = ".new", ".damaged"
_BLOCK_BYTES = 1 << 20


class DefinitionFiles:
    """A store for the definitions of datasets that are registered with a dispatcher.

    Only one thread at a time may use the store, except for `is_sound`, which any thread may call.

    Args:
      folder: The folder for the files, which is created if it does not exist; `None` to keep definitions in memory.

    Raises:
      JournalError: If other users may enter the folder.
      OSError: If the folder cannot be created.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._here: dict[bytes, bytes] = {}
        # The digests of files whose content matched the digest when it was last checked.
        self._sound: set[bytes] = set()
        if folder is not None:
            make_private_folder(folder, lambda name: True)
            make_files_private(folder)

    def _path(self, digest: bytes) -> Path:
        assert self._folder is not None, "definitions are stored in files"
        return self._folder / digest.hex()

    def keep(self, digest: bytes, definition: memoryview) -> None:
        """Stores a definition, which is on disk when this function returns. A damaged file is replaced."""
        if self._folder is None:
            self._here[digest] = bytes(definition)
        elif not self.has(digest):
            path = self._path(digest)
            unfinished = path.with_suffix(_UNFINISHED)
            with open(unfinished, "wb", opener=open_private) as file:
                file.write(definition)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(self._folder)
            self._sound.add(digest)

    def is_sound(self, digest: bytes) -> bool:
        """Returns whether a definition exists and matched its digest when it was last checked. Does not read files."""
        return digest in self._here if self._folder is None else digest in self._sound and self._path(digest).exists()

    def has(self, digest: bytes) -> bool:
        """Returns whether a definition exists and matches its digest. Reads the whole file."""
        if self._folder is None:
            return digest in self._here
        try:
            with self._path(digest).open("rb") as file:
                is_sound = _digest_of(file) == digest
        except FileNotFoundError:
            is_sound = False
        (self._sound.add if is_sound else self._sound.discard)(digest)
        return is_sound

    def read(self, digest: bytes) -> bytes:
        """Returns the definition with a digest.

        Raises:
          JournalError: If the file is missing or damaged. A damaged file is renamed, so that the dataset can be
            registered again.
        """
        if self._folder is None:
            return self._here[digest]
        path = self._path(digest)
        try:
            definition = path.read_bytes()
        except FileNotFoundError as error:
            raise JournalError(
                f"The definition of a registered dataset is missing: {path}; register the dataset again"
            ) from error
        if hashlib.sha256(definition).digest() != digest:
            self._sound.discard(digest)
            path.replace(path.with_suffix(_DAMAGED))
            raise JournalError(
                f"The definition of a registered dataset is damaged: {path}; the file has been renamed to end in "
                f"{_DAMAGED}: register the dataset again"
            )
        self._sound.add(digest)
        return definition

    def __repr__(self) -> str:
        return f"<DefinitionFiles in {self._folder or 'memory'}>"


def _digest_of(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.digest()
