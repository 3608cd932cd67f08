"""Certificates in a folder, found and kept by their keys."""

from pathlib import Path

from ir_passes import Certificate
from ir_passes.compile.certificate_store import Key
from ir_passes.files.store import FileStore


def find(folder: Path, key: Key) -> Certificate | None:
    """Return the trusted certificate of a key in a folder, or None."""
    return key.find(FileStore(folder))


def keep(folder: Path, key: Key, certificate: Certificate) -> Certificate | None:
    """Write a certificate to a folder and return what is found by its key."""
    key.keep(FileStore(folder), certificate)
    return find(folder, key)
