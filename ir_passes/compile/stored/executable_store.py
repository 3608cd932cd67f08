"""Directory of compiled steps, by a key of everything that makes them.

An executable is machine code: an entry is loaded only if no other user could have written it (`FileStore`). Damaged or
foreign entries count as absent, with a line in the log.
"""

import logging
from pathlib import Path

import jax

from ir_passes.compile.stored.entry_file import (
    MAX_HEADER_BYTES,
    START,
    Entry,
    Header,
    from_bytes,
    read_header,
    to_bytes,
)
from ir_passes.files.store import FileStore, StoredFile, UntrustedError

_log = logging.getLogger("hybridlm")

DEFAULT_MAX_BYTES = 4 << 30
MAX_ENTRY_BYTES = 2 << 30
UNUSABLE = (OSError, ValueError, jax.errors.JaxRuntimeError)
"""Errors of unusable entries; record and description errors are ValueErrors."""


class ExecutableStore(FileStore):
    """A directory of compiled steps, shared by any number of processes.

    Args:
        directory: created for this user alone, on first use.
        max_bytes: of all entries; beyond, the least recently used are deleted.
    """

    suffix = ".step"

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__(directory)
        self.max_bytes = max_bytes
        self._full = False

    def find(self, key: str) -> Entry | None:
        """Return the trusted entry of a key, or None."""
        try:
            return from_bytes(key, self.require_file(key + self.suffix, MAX_ENTRY_BYTES))
        except FileNotFoundError:
            return None
        except UNUSABLE as error:
            self.damaged(key, error)
            return None

    def keep(self, key: str, entry: Entry) -> bool:
        """Write an entry atomically; True if stored."""
        try:
            content = to_bytes(key, entry)
            if len(content) > min(self.max_bytes, MAX_ENTRY_BYTES):
                _log.info("%s is not kept: it has %d bytes", entry.label, len(content))
                return False
            self.write_file(key + self.suffix, content)
            self.forget(self.max_bytes, but=key + self.suffix)
        except OSError as error:
            if not self._full:
                _log.warning("%s: compiled steps are not kept: %s", self.directory, error.strerror or error)
            self._full = True
            return False
        except UNUSABLE as error:
            self.damaged(key, error)
            return False
        return True

    def entries(self) -> list[tuple[StoredFile, Header | None]]:
        """List all files, most recently used first, with headers (None if unreadable); raises UntrustedError."""
        listed: list[tuple[StoredFile, Header | None]] = []
        for file in sorted(self.files(), key=lambda file: (-file.used, file.name)):
            try:
                start = self.read_start(file.name, START.size + MAX_HEADER_BYTES)
                listed.append((file, read_header(start, file.name.removesuffix(self.suffix))[0]))
            except UNUSABLE:
                listed.append((file, None))
        return listed

    def damaged(self, key: str, error: Exception) -> None:
        """Log why an entry is unusable; once for an untrusted folder."""
        if isinstance(error, UntrustedError) and error.folder:
            self.warn(error)
        else:
            name = self.directory / (key + self.suffix)
            _log.warning("%s is not used: %s; steps are compiled", name, str(error) or type(error).__name__)
